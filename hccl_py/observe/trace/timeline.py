"""The timeline of all ranks, in the trace-event format that Perfetto and chrome://tracing read.

A process is a rank. Each of its communicators has a track of collectives in order, with the waits
for late ranks and the data movement inside. Transfers and queued calls may overlap, so they are
drawn as asynchronous events. Arrows join a collective over all ranks.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from hccl_py.observe.trace.clocks import Offset
from hccl_py.observe.trace.files import RankFile

Event = dict[str, Any]

_NOTICEABLE_NS = 1000


class Timeline:
    """Turns files of ranks into trace events."""

    def __init__(self, files: Sequence[RankFile], offsets: Sequence[Offset]) -> None:
        """Take the files, and the offset to add to each file's times."""
        self._files = list(zip(files, offsets, strict=True))
        begins = [
            entry["time_created_ns"] + offset.offset_ns
            for file, offset in self._files
            for entry in file.content["entries"]
        ]
        self._origin_ns = min(begins, default=0)
        self._joined: dict[tuple[str, int], list[Event]] = {}
        self._num_async = 0

    def trace(self) -> dict[str, Any]:
        """Return the whole trace, fit for JSON."""
        events: list[Event] = []
        for file, offset in self._files:
            events += _names(file)
            shift_ns = offset.offset_ns - self._origin_ns
            for entry in file.content["entries"]:
                events += self._call(file, shift_ns, entry)
        events += self._arrows()
        clocks = [{"rank": file.rank, **offset._asdict()} for file, offset in self._files]
        other = {"clocks": clocks, "origin_ns": self._origin_ns}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}

    def _call(self, file: RankFile, shift_ns: int, entry: dict[str, Any]) -> Iterator[Event]:
        communicators = file.content["communicators"]
        tid = [one["name"] for one in communicators].index(entry["process_group"][0])
        one, base = communicators[tid], {"pid": file.rank, "tid": tid}
        begin_ns = (entry["time_discovered_started_ns"] or entry["time_created_ns"]) + shift_ns
        end_ns = (entry["time_discovered_completed_ns"] or file.content["written_ns"]) + shift_ns
        name = entry["profiling_name"].partition(":")[2]
        whole = {**base, "name": name, "args": _arguments(entry, one)}
        if entry["is_p2p"] or not entry["time_discovered_started_ns"]:
            category = "transfer" if entry["is_p2p"] else "queued"
            self._num_async += 1
            whole |= {"cat": category, "id": self._num_async}
            yield {**whole, "ph": "b", "ts": (entry["time_created_ns"] + shift_ns) / 1000}
            yield {**whole, "ph": "e", "ts": end_ns / 1000}
            return
        whole |= {"cat": "collective", **_span(begin_ns, end_ns)}
        yield whole
        late = f"waiting for rank {_global(one, entry['waited_for'])}"
        # It waited for late ranks until one time, and moved data after it.
        until_ns = min(max(entry["waited_until_ns"] + shift_ns, begin_ns), end_ns)
        since_ns = max(begin_ns, until_ns - entry["waiting_ns"])
        if since_ns - begin_ns > _NOTICEABLE_NS:
            yield {**base, "cat": "moving", "name": "moving", **_span(begin_ns, since_ns)}
        if until_ns > since_ns:
            yield {**base, "cat": "waiting", "name": late, **_span(since_ns, until_ns)}
        yield {**base, "cat": "moving", "name": "moving", **_span(until_ns, end_ns)}
        if one["id"]:  # otherwise the rank is alone in it
            self._joined.setdefault((one["id"], entry["collective_seq_id"]), []).append(whole)

    def _arrows(self) -> Iterator[Event]:
        for number, slices in enumerate(self._joined.values(), 1):
            slices.sort(key=lambda event: (event["ts"], event["pid"]))
            for index, event in enumerate(slices if len(slices) > 1 else []):
                phase = "s" if index == 0 else "f" if index == len(slices) - 1 else "t"
                arrow = {"ph": phase, "cat": "collective", "name": event["name"], "id": number}
                yield arrow | {key: event[key] for key in ("pid", "tid", "ts")} | {"bp": "e"}


def _span(begin_ns: int, end_ns: int) -> Event:
    return {"ph": "X", "ts": begin_ns / 1000, "dur": max(end_ns - begin_ns, 0) / 1000}


def _names(file: RankFile) -> Iterator[Event]:
    about = file.content
    tracks = [
        one["name"] + (f": {one['description']}" if one.get("description") else "")
        for one in about["communicators"]
    ]
    rank = f"rank {file.rank} ({about['host']}, pid {about['pid']})"
    named = [("process", 0, file.rank, rank)]
    named += [("thread", tid, tid, track) for tid, track in enumerate(tracks)]
    for kind, tid, place, name in named:
        base = {"ph": "M", "pid": file.rank, "tid": tid}
        yield {**base, "name": f"{kind}_name", "args": {"name": name}}
        yield {**base, "name": f"{kind}_sort_index", "args": {"sort_index": place}}


def _global(communicator: dict[str, Any], rank: int | None) -> int | None:
    ranks = communicator.get("global_ranks")
    return ranks[rank] if ranks and rank is not None else rank


def _arguments(entry: dict[str, Any], communicator: dict[str, Any]) -> Event:
    started_ns = entry["time_discovered_started_ns"] or entry["time_created_ns"]
    arguments: Event = {
        "call": entry["call"],
        "communicator": communicator["name"],
        "state": entry["state"],
        "bytes in": entry["bytes_in"],
        "bytes out": entry["bytes_out"],
        "registered memory": entry["rendezvous"],
    }
    if not entry["is_p2p"]:
        arguments["number"] = entry["collective_seq_id"]
        arguments["queued us"] = (started_ns - entry["time_created_ns"]) / 1000
        arguments["waiting us"] = entry["waiting_ns"] / 1000
        if entry["waited_for"] is not None:
            arguments["waited for rank"] = _global(communicator, entry["waited_for"])
    if entry["frames"]:
        frame = entry["frames"][0]
        arguments["called at"] = f"{frame['filename']}:{frame['line']}"
    return arguments
