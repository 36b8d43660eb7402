"""The collectives that a job recorded: which, how large, how often, and how long they took."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from hccl_py.observe.trace.files import RankFile, TraceError, read
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

_PREFIX = "hccl:"


class Recorded(NamedTuple):
    """Calls of one collective and size."""

    collective: str
    bytes: int  # of a rank's larger buffer
    num_calls: int
    us: float  # of all of them together, without the time that late ranks cost


def recorded_in(folder: Path) -> tuple[int, list[Recorded]]:
    """Return the size of a job's largest communicator, and its finished collectives.

    Raises:
        InvalidArgumentError: there are no flight recorders, or they have no such calls.
    """
    try:
        files = read([folder])
    except (TraceError, OSError) as error:
        raise InvalidArgumentError(str(error)) from error
    communicators = [one for file in files for one in file.content["communicators"]]
    if not communicators:
        raise InvalidArgumentError(f"{folder}: the flight recorders hold no communicator")
    largest = max(communicators, key=lambda one: int(one["world_size"]))
    calls: defaultdict[tuple[str, int], list[list[float]]] = defaultdict(list)
    for file in files:
        for key, times_us in _times_us(file, largest["name"]).items():
            calls[key].append(times_us)
    if not calls:
        raise InvalidArgumentError(f"{folder}: no finished collective of {largest['name']!r}")
    found = [
        Recorded(*key, max(map(len, ranks)), statistics.mean(map(sum, ranks)))
        for key, ranks in calls.items()
    ]
    return int(largest["world_size"]), sorted(found, key=lambda one: -one.us)


def _times_us(file: RankFile, name: str) -> dict[tuple[str, int], list[float]]:
    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for entry in file.content["entries"]:
        collective = str(entry.get("profiling_name", "")).removeprefix(_PREFIX)
        begun, ended = (
            entry.get(f"time_discovered_{what}_ns") for what in ("started", "completed")
        )
        if entry.get("process_group", [""])[0] != name or collective not in COLLECTIVES:
            continue
        num_bytes = max(int(entry["bytes_in"]), int(entry["bytes_out"]))
        if begun and ended and num_bytes:
            moving_ns = ended - begun - int(entry.get("waiting_ns") or 0)
            times[collective, num_bytes].append(max(0, moving_ns) / 1e3)
    return times
