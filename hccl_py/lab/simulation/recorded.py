"""The collectives in a job's flight recorders: how often, how large, and when.

`recorded_in` sums up all calls of the job; `measured` finds one call on all its ranks.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hccl_py.observe.trace.clocks import offsets
from hccl_py.observe.trace.files import TraceError, read
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

_PREFIX = "hccl:"


class RecordedCalls(NamedTuple):
    """Calls of one collective and size."""

    collective: str
    bytes: int  # of a rank's larger buffer
    num_calls: int
    us: float  # of all calls together, without waits for late ranks


class MeasuredCall(NamedTuple):
    """A call as all ranks recorded it; times in us since the first rank began."""

    number: int
    num_bytes: int
    end: float
    ranks: list[dict[str, float] | None]  # None: this rank has no file


class _Entry(NamedTuple):
    """A finished collective of one rank. Times are of the first file's clock."""

    communicator: str
    name: str  # of the communicator
    world_size: int
    rank: int
    collective: str
    number: int
    num_bytes: int
    began_ns: int
    waited_until_ns: int  # the end of the wait for late ranks
    waiting_ns: int
    ended_ns: int


def recorded_in(folder: Path) -> tuple[int, list[RecordedCalls]]:
    """Return the size of a job's largest communicator, and its finished collectives.

    Raises:
        InvalidArgumentError: there are no flight recorders, or they have no such calls.
    """
    entries = [one for one in _entries(folder) if one.num_bytes]
    if not entries:
        raise InvalidArgumentError(f"--trace: {folder} has no finished collective with data")
    largest = max(entries, key=lambda one: one.world_size)
    calls: defaultdict[tuple[str, int], defaultdict[int, list[float]]]
    calls = defaultdict(lambda: defaultdict(list))
    for one in entries:
        if one.name == largest.name:
            us = max(0, one.ended_ns - one.began_ns - one.waiting_ns) / 1e3
            calls[one.collective, one.num_bytes][one.rank].append(us)
    found = [
        RecordedCalls(
            *key, max(map(len, ranks.values())), statistics.mean(map(sum, ranks.values()))
        )
        for key, ranks in calls.items()
    ]
    return largest.world_size, sorted(found, key=lambda one: -one.us)


def calls_by_rank(folder: Path) -> dict[int, list[_Entry]]:
    """Return the calls of each rank of a job's largest communicator, in order.

    Raises:
        InvalidArgumentError: there are no flight recorders of all its ranks.
    """
    entries = list(_entries(folder))
    largest = max(entries, key=lambda one: one.world_size, default=None)
    ranks: defaultdict[int, list[_Entry]] = defaultdict(list)
    for one in entries:
        if largest is not None and one.communicator == largest.communicator:
            ranks[one.rank].append(one)
    if largest is None or len(ranks) < largest.world_size:
        raise InvalidArgumentError(f"--trace: expected calls of all ranks in {folder}")
    return {rank: sorted(ranks[rank], key=lambda one: one.began_ns) for rank in sorted(ranks)}


def measured(folder: Path, collective: str, n: int, number: int | None) -> MeasuredCall:
    """Find a call among n ranks in the flight recorders of a folder: the last one, or by number.

    Raises:
        InvalidArgumentError: there is no such call that ended on all ranks that have files.
    """
    calls: defaultdict[tuple[str, int], dict[int, _Entry]] = defaultdict(dict)
    for one in _entries(folder):
        if (one.collective, one.world_size) == (collective, n):
            calls[one.communicator, one.number][one.rank] = one
    most = max(map(len, calls.values()), default=0)
    found = {
        key[1]: ranks
        for key, ranks in calls.items()
        if len(ranks) == most and number in (None, key[1])
    }
    if not found:
        wanted = collective if number is None else f"{collective} number {number}"
        raise InvalidArgumentError(
            f"--trace: expected a finished {wanted} among {n} ranks in {folder}; there is none"
        )
    last = max(found)
    ranks = found[last]
    first_ns = min(one.began_ns for one in ranks.values())
    times: list[dict[str, float] | None] = [None] * n
    for rank, one in ranks.items():
        named = {"begin": one.began_ns, "waited": one.waited_until_ns, "end": one.ended_ns}
        times[rank] = {key: (ns - first_ns) / 1000 for key, ns in named.items()}
    num_bytes = next(iter(ranks.values())).num_bytes
    return MeasuredCall(last, num_bytes, max(one["end"] for one in times if one), times)


def _entries(folder: Path) -> Iterator[_Entry]:
    try:
        files = read([folder])
        apart = offsets(files)
    except (TraceError, OSError) as error:
        raise InvalidArgumentError(f"--trace: {error}") from error
    for file, offset in zip(files, apart, strict=True):
        communicators = {one["name"]: one for one in file.content["communicators"]}
        for entry in file.content["entries"]:
            one = communicators[entry["process_group"][0]]
            collective = str(entry["profiling_name"]).removeprefix(_PREFIX)
            ended_ns = entry["time_discovered_completed_ns"]
            if collective not in COLLECTIVES or not ended_ns:
                continue
            began_ns = entry["time_discovered_started_ns"] or entry["time_created_ns"]
            waited_ns = min(max(entry["waited_until_ns"], began_ns), ended_ns)
            yield _Entry(
                communicator=one["id"],
                name=one["name"],
                world_size=one["world_size"],
                rank=one["rank"],
                collective=collective,
                number=entry["collective_seq_id"],
                num_bytes=max(entry["bytes_in"], entry["bytes_out"]),
                began_ns=began_ns + offset.offset_ns,
                waited_until_ns=waited_ns + offset.offset_ns,
                waiting_ns=entry["waiting_ns"] or 0,
                ended_ns=ended_ns + offset.offset_ns,
            )
