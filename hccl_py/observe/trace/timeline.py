"""The timeline of all ranks, in the trace-event format that Perfetto and chrome://tracing read.

A process is a rank. Each of its communicators has a track of collectives, one after the other as
they ran, with the waiting for late ranks and the moving of data inside; transfers, and what still
waits for its turn, may overlap and are drawn as asynchronous events. Arrows join a collective over
all ranks.
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
        """Take what was read, and what to add to each file's times."""
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
            for entry in file.content["entries"]:
                events += self._call(file, offset.offset_ns, entry)
        events += self._arrows()
        clocks = [{"rank": file.rank, **offset._asdict()} for file, offset in self._files]
        other = {"clocks": clocks, "origin_ns": self._origin_ns}
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}

    def _call(self, file: RankFile, offset_ns: int, entry: dict[str, Any]) -> Iterator[Event]:
        tid, one = _communicator_of(file, entry)
        base: Event = {"pid": file.rank, "tid": tid}
        begin_ns = entry["time_discovered_started_ns"] or entry["time_created_ns"]
        end_ns = entry["time_discovered_completed_ns"] or file.content["written_ns"]
        name = entry["profiling_name"].partition(":")[2]
        whole = {**base, "name": name, "args": _arguments(entry, one)}
        if entry["is_p2p"] or not entry["time_discovered_started_ns"]:
            category = "transfer" if entry["is_p2p"] else "queued"
            self._num_async += 1
            whole |= {"cat": category, "id": self._num_async}
            yield {**whole, "ph": "b", "ts": self._us(entry["time_created_ns"] + offset_ns)}
            yield {**whole, "ph": "e", "ts": self._us(end_ns + offset_ns)}
            return
        whole |= {"ph": "X", "cat": "collective", **self._span(begin_ns, end_ns, offset_ns)}
        yield whole
        yield from self._parts(base, entry, one, (begin_ns, end_ns, offset_ns))
        if one["id"]:  # else the rank is alone in it
            self._joined.setdefault((one["id"], entry["collective_seq_id"]), []).append(whole)

    def _parts(
        self, base: Event, entry: dict[str, Any], one: dict[str, Any], span: tuple[int, int, int]
    ) -> Iterator[Event]:
        """Yield what a collective did: wait for late ranks until one time, move data otherwise."""
        begin_ns, end_ns, offset_ns = span
        until_ns = min(max(entry["waited_until_ns"], begin_ns), end_ns)
        since_ns = max(begin_ns, until_ns - entry["waiting_ns"])
        parts = [("moving", begin_ns, since_ns)] if since_ns - begin_ns > _NOTICEABLE_NS else []
        if until_ns > since_ns:
            late = f"waiting for rank {_global(one, entry['waited_for'])}"
            parts.append((late, since_ns, until_ns))
        parts.append(("moving", until_ns, end_ns))
        for name, part_begin_ns, part_end_ns in parts:
            category = "moving" if name == "moving" else "waiting"
            part = {**base, "ph": "X", "cat": category, "name": name}
            yield part | self._span(part_begin_ns, part_end_ns, offset_ns)

    def _arrows(self) -> Iterator[Event]:
        """Yield a chain over the ranks of each collective, in the order in which they came."""
        for number, slices in enumerate(self._joined.values(), 1):
            slices.sort(key=lambda event: (event["ts"], event["pid"]))
            for index, event in enumerate(slices if len(slices) > 1 else []):
                phase = "s" if index == 0 else "f" if index == len(slices) - 1 else "t"
                arrow = {"ph": phase, "cat": "collective", "name": event["name"], "id": number}
                yield arrow | {key: event[key] for key in ("pid", "tid", "ts")} | {"bp": "e"}

    def _span(self, begin_ns: int, end_ns: int, offset_ns: int) -> Event:
        return {"ts": self._us(begin_ns + offset_ns), "dur": max(end_ns - begin_ns, 0) / 1000}

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._origin_ns) / 1000


def _names(file: RankFile) -> Iterator[Event]:
    """Yield the names of a rank and of its communicators, and in which order they stand."""
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


def _communicator_of(file: RankFile, entry: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    name = entry["process_group"][0]
    for index, one in enumerate(file.content["communicators"]):
        if one["name"] == name:
            return index, one
    return 0, file.content["communicators"][0]


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
