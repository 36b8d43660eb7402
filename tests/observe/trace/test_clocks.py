"""Clocks that differ by seconds are set right to within what the collectives leave open."""

import json
from pathlib import Path

import pytest
from recorded import MS, T0, change, entry, header, job

from hccl_py.observe.trace.clocks import offsets
from hccl_py.observe.trace.files import read
from hccl_py.observe.trace.timeline import Timeline

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


def test_communicators_of_one_rank_are_not_taken_for_one_another(tmp_path: Path) -> None:
    paths = job(tmp_path, SKEWS_NS)
    expected = offsets(read(paths))
    for rank, path in enumerate(paths):
        content = json.loads(path.read_text())
        # The same numbers at quite different times.
        begin_ns = T0 + (1 + rank) * 1000 * MS
        alone = [
            entry(number, begin_ns, begin_ns + MS, process_group=["alone", ""])
            for number in range(1, 4)
        ]
        about = header(0, 1, name="alone", id="", boot_id=f"boot {rank}")
        change(
            path,
            communicators=[*content["communicators"], about],
            entries=[*content["entries"], *alone],
        )
    assert offsets(read(paths)) == expected
    files = read(paths)
    arrows = [one for one in Timeline(files, expected).trace()["traceEvents"] if one["ph"] == "s"]
    assert len(arrows) == 20  # one for each collective that several ranks made
