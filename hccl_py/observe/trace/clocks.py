"""The offsets between the hosts' clocks, so that one timeline fits all ranks.

Times in a file are of its host's clock, which all ranks of one boot of one kernel share. There are
two sources for offsets between hosts:

- the collectives: in one that all ranks wait for, none can end before all have begun. So for each
  of them   end here + offset here >= begin there + offset there   and vice versa. Of many calls the
  narrowest bounds apply.
- the control plane, which compares clocks with every heartbeat: half a round trip bounds its error.

The control plane's offset is used if it is within the bounds of the collectives, else the bounds.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hccl_py.observe.trace.files import RankFile


class Offset(NamedTuple):
    """The difference to add to a rank's times, to get those of the first file's host."""

    offset_ns: int
    error_ns: int | None  # upper bound of the error; None: unknown
    source: str  # in words


REFERENCE = Offset(0, 0, "the reference clock")


def offsets(files: Sequence[RankFile]) -> list[Offset]:
    """Return each file's offset to the clock of the first one's host."""
    hosts: dict[str, list[RankFile]] = {}
    for file in files:
        hosts.setdefault(_boot(file), []).append(file)
    first, *others = hosts
    apart = {boot: _offset(hosts[first], hosts[boot]) for boot in others}
    return [apart.get(_boot(file), REFERENCE) for file in files]


def _boot(file: RankFile) -> str:
    communicators = file.content["communicators"]
    return str(communicators[0]["boot_id"]) if communicators else str(file.path)


def _offset(here: Sequence[RankFile], there: Sequence[RankFile]) -> Offset:
    bounds, probe = _bounds(here, there), _probed(here, there)
    # If the clocks drift, no single number fits all calls.
    drift = bounds is not None and bounds[0] > bounds[1]
    if probe is not None and (bounds is None or drift):
        return Offset(*probe, "the control plane's clock probe")
    if bounds is None:
        nothing = "nothing: no collective in common, so the hosts' own clocks count"
        return Offset(0, None, nothing)
    low, high = bounds
    if probe is not None and low <= probe[0] <= high:
        error = min(probe[1], max(probe[0] - low, high - probe[0]))
        return Offset(probe[0], error, "the control plane's clock probe, confirmed by collectives")
    says = "collectives; the clocks drift" if drift else "collectives"
    says += ", which rule out the clock probe" * (probe is not None)
    return Offset((low + high) // 2, abs(high - low) // 2, says)


def _bounds(here: Sequence[RankFile], there: Sequence[RankFile]) -> tuple[int, int] | None:
    ours: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for key, begin, end in _calls(here):
        ours.setdefault(key, []).append((begin, end))
    # They began before we ended, and we before they ended.
    bounds = [
        (our_begin - end, our_end - begin)
        for key, begin, end in _calls(there)
        for our_begin, our_end in ours.get(key, [])
    ]
    if not bounds:
        return None
    return max(low for low, _ in bounds), min(high for _, high in bounds)


def _calls(files: Sequence[RankFile]) -> Iterator[tuple[tuple[str, int], int, int]]:
    for file in files:
        ids = {one["name"]: one["id"] for one in file.content["communicators"]}
        for entry in file.content["entries"]:
            if entry["state"] != "completed" or not _synchronous(entry):
                continue
            communicator = ids.get(entry["process_group"][0], "")
            if not communicator:  # a communicator of one rank
                continue
            key = (communicator, entry["collective_seq_id"])
            yield key, entry["time_created_ns"], entry["time_discovered_completed_ns"]


def _synchronous(entry: dict[str, Any]) -> bool:
    name = entry["profiling_name"].partition(":")[2]
    if name == "barrier":
        return True
    # An empty message is not sent, so a rank without data waits for no rank.
    return name in ("all_reduce", "reduce_scatter") and entry["bytes_in"] > 0


def _probed(here: Sequence[RankFile], there: Sequence[RankFile]) -> tuple[int, int] | None:
    communicators = [
        (a, b)
        for ours in here
        for theirs in there
        for a in ours.content["communicators"]
        for b in theirs.content["communicators"]
        if a["id"] and a["id"] == b["id"]
    ]
    for pair in communicators:
        coordinators = {one["clock"]["coordinator"] for one in pair if one["clock"]}
        if len(coordinators) != 1:
            continue
        our, their = (_reading(one, *coordinators) for one in pair)
        if our is not None and their is not None:
            return their[0] - our[0], (our[1] + their[1]) // 2
    return None


def _reading(communicator: dict[str, Any], coordinator: int) -> tuple[int, int] | None:
    if communicator["rank"] == coordinator:
        return 0, 0
    clock = communicator["clock"]
    return None if clock is None else (clock["offset_ns"], clock["round_trip_ns"])
