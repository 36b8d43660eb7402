"""The merged timeline, against the rules of the trace-event format and what really happened."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from recorded import MS, entry, header, job

from hccl_py.observe.dump_files import write
from hccl_py.observe.trace.main import main

SKEWS_NS = (0, 7_000 * MS, -2_500 * MS)
LATE_RANK, LATE_US = 1, 400.0


def merged(folder: Path) -> dict[str, Any]:
    output = folder / "trace.json"
    assert main([str(folder), "-o", str(output)]) == 0
    trace: dict[str, Any] = json.loads(output.read_text())
    require_valid(trace)
    return trace


def require_valid(trace: dict[str, Any]) -> None:
    """Check every rule of the format that our events are subject to."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    asynchronous: dict[tuple[str, int], list[str]] = defaultdict(list)
    flows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        assert event["ph"] in set("MXbestf")
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        assert type(event["tid"]) is int
        if event["ph"] == "M":
            assert event["name"] in (
                *("process_name", "process_sort_index", "thread_name", "thread_sort_index"),
            )
            continue
        assert isinstance(event["ts"], float | int)
        assert event["ts"] >= 0
        assert isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "be":
            asynchronous[event["cat"], event["id"]].append(event["ph"])
        else:
            flows[event["id"]].append(event)
    assert all(phases == ["b", "e"] for phases in asynchronous.values())
    for spans in tracks.values():
        require_nested(spans)
    for chain in flows.values():
        assert [event["ph"] for event in chain] == ["s", *"t" * (len(chain) - 2), "f"]
        times = [event["ts"] for event in chain]
        assert times == sorted(times)
        for event in chain:  # each end lies in a slice of its track
            spans = tracks[event["pid"], event["tid"]]
            assert any(begin <= event["ts"] <= end for begin, end in spans)


def require_nested(spans: list[tuple[float, float]]) -> None:
    """Slices of one track lie apart, or one inside the other."""
    rounding = 0.002
    open_ends: list[float] = []
    for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        while open_ends and open_ends[-1] <= begin + rounding:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + rounding
        open_ends.append(end)


def test_a_late_rank_is_seen_late_by_the_right_amount(tmp_path: Path) -> None:
    job(tmp_path, SKEWS_NS, late_rank=LATE_RANK, late_ns=int(LATE_US * 1000))
    events = merged(tmp_path)["traceEvents"]
    begins: dict[int, dict[int, float]] = defaultdict(dict)
    for event in events:
        if event["ph"] == "X" and event["cat"] == "collective":
            begins[event["args"]["number"]][event["pid"]] = event["ts"]
    for number, by_rank in begins.items():
        late_us = by_rank[LATE_RANK] - min(by_rank[rank] for rank in (0, 2))
        # What is left open: the 50 us that every call takes.
        assert late_us == pytest.approx(LATE_US * (number % 5 == 0), abs=60)
    waits = [event for event in events if event["ph"] == "X" and event["cat"] == "waiting"]
    assert {event["pid"] for event in waits} == {0, 2}
    assert {event["name"] for event in waits} == {"waiting for rank 1"}
    assert all(event["dur"] == pytest.approx(LATE_US, abs=60) for event in waits)
    assert len(waits) == 2 * 4


def test_arrows_join_a_collective_over_all_ranks(tmp_path: Path) -> None:
    job(tmp_path, SKEWS_NS, num_calls=5)
    flows: dict[int, set[int]] = defaultdict(set)
    for event in merged(tmp_path)["traceEvents"]:
        if event["ph"] in "stf":
            flows[event["id"]].add(event["pid"])
    assert list(flows.values()) == [{0, 1, 2}] * 5


def test_transfers_and_waiting_calls_may_overlap(tmp_path: Path) -> None:
    begin_ns = 1000 * MS
    transfers = [
        entry(0, begin_ns + n, begin_ns + 9 * MS - n, is_p2p=True, tag=n, peer=1)
        | {"profiling_name": "hccl:send 0->1"}
        for n in range(3)
    ]
    running = entry(1, begin_ns, 0, state="started")
    queued = entry(2, begin_ns + 5, 0, state="submitted", time_discovered_started_ns=0)
    write(tmp_path, 0, "test", [(header(0, 2), [*transfers, running, queued])])
    events = merged(tmp_path)["traceEvents"]
    begun = sorted(event["name"] for event in events if event["ph"] == "b")
    assert begun == ["all_reduce", *["send 0->1"] * 3]
    (slice_,) = [e for e in events if e["ph"] == "X" and e["cat"] == "collective"]
    assert slice_["args"]["state"] == "started"  # drawn until the file was written
    assert slice_["dur"] > 0
