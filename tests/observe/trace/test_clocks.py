"""Clocks that differ by seconds are set right to within what the collectives leave open."""

import json
from pathlib import Path

import pytest
from recorded import MS, change, job

from hccl_py.observe.trace.clocks import offsets
from hccl_py.observe.trace.files import read

SKEWS_NS = (0, 3_000 * MS, -1_234_567_890, 17)


def test_offsets_from_collectives_are_within_their_own_error(tmp_path: Path) -> None:
    files = read(job(tmp_path, SKEWS_NS))
    for skew_ns, offset in zip(SKEWS_NS, offsets(files), strict=True):
        assert offset.error_ns is not None
        assert abs(offset.offset_ns + skew_ns) <= offset.error_ns < MS // 10
    sources = [offset.source for offset in offsets(files)]
    assert sources == ["the reference clock"] + ["collectives"] * 3


def test_offsets_of_the_clock_probe_are_used_and_confirmed(tmp_path: Path) -> None:
    found = offsets(read(job(tmp_path, SKEWS_NS, probes=True)))
    assert [offset.offset_ns for offset in found] == [-skew_ns for skew_ns in SKEWS_NS]
    assert all("confirmed by collectives" in offset.source for offset in found[1:])


def test_a_clock_probe_that_cannot_be_right_is_not_believed(tmp_path: Path) -> None:
    paths = job(tmp_path, SKEWS_NS, probes=True)
    content = json.loads(paths[1].read_text())
    content["communicators"][0]["clock"]["offset_ns"] += 500 * MS
    change(paths[1], communicators=content["communicators"])
    offset = offsets(read(paths))[1]
    assert offset.offset_ns == pytest.approx(-SKEWS_NS[1], abs=MS)
    assert "rule out the clock probe" in offset.source


def test_ranks_of_one_boot_share_a_clock(tmp_path: Path) -> None:
    paths = job(tmp_path, (0, 0, 0))
    for path in paths[1:]:
        communicators = json.loads(path.read_text())["communicators"]
        communicators[0]["boot_id"] = "boot 0"
        change(path, communicators=communicators)
    assert {offset.offset_ns for offset in offsets(read(paths))} == {0}


def test_without_a_call_in_common_nothing_is_guessed(tmp_path: Path) -> None:
    paths = job(tmp_path, (0, 5))
    change(paths[1], entries=[])
    offset = offsets(read(paths))[1]
    assert (offset.offset_ns, offset.error_ns) == (0, None)
