"""How far the clocks of the hosts are apart, so that one timeline fits all ranks.

Times in a file are of its host's clock, which all ranks of one boot of one kernel share. Between
hosts two sources tell:

- the collectives: in one that all ranks wait for, none can end before all have begun. So for each
  of them   end here + offset here >= begin there + offset there   and the other way round; of many
  calls the narrowest bounds count, and between them lies the truth.
- the control plane, which compares clocks with every heartbeat: half a round trip bounds its error.

Its word is taken where it lies within the bounds of the collectives, else the bounds themselves.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hccl_py.observe.trace.files import RankFile


class Offset(NamedTuple):
    """What to add to a rank's times.

    Attributes:
        offset_ns: to get those of the first file's host.
        error_ns: at most, as far as the source knows; None: unknown.
        source: for people.
    """

    offset_ns: int
    error_ns: int | None
    source: str


class _Bounds(NamedTuple):
    low: int
    high: int


def offsets(files: Sequence[RankFile]) -> list[Offset]:
    """Return each file's offset to the clock of the first one's host."""
    hosts: dict[str, int] = {}
    for index, file in enumerate(files):
        hosts.setdefault(_boot(file), index)
    by_host: dict[str, Offset] = {}
    reference = next(iter(hosts))
    for boot in hosts:
        by_host[boot] = _host_offset(files, reference, boot)
    return [by_host[_boot(file)] for file in files]


def _boot(file: RankFile) -> str:
    communicators = file.content["communicators"]
    return str(communicators[0]["boot_id"]) if communicators else str(file.path)


def _host_offset(files: Sequence[RankFile], reference: str, boot: str) -> Offset:
    if boot == reference:
        return Offset(0, 0, "the reference clock")
    here = [file for file in files if _boot(file) == reference]
    there = [file for file in files if _boot(file) == boot]
    bounds = _bounds(here, there)
    probe = _probed(here, there)
    if bounds is None or bounds.low > bounds.high:
        if probe is not None:
            return Offset(*probe, "the control plane's clock probe")
        if bounds is not None:  # the clocks drift: no single number fits all calls
            middle = (bounds.low + bounds.high) // 2
            return Offset(middle, (bounds.low - bounds.high) // 2, "collectives; the clocks drift")
        return Offset(0, None, "nothing: no collective in common, so the hosts' own clocks count")
    if probe is not None and bounds.low <= probe[0] <= bounds.high:
        error = min(probe[1], max(probe[0] - bounds.low, bounds.high - probe[0]))
        return Offset(probe[0], error, "the control plane's clock probe, confirmed by collectives")
    middle = (bounds.low + bounds.high) // 2
    says = "collectives" if probe is None else "collectives, which rule out the clock probe"
    return Offset(middle, (bounds.high - bounds.low) // 2, says)


def _bounds(here: Sequence[RankFile], there: Sequence[RankFile]) -> _Bounds | None:
    """Bound what to add to the times of `there` to get those of `here`."""
    lows: list[int] = []
    highs: list[int] = []
    ours: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for key, begin, end in _calls(here):
        ours.setdefault(key, []).append((begin, end))
    for key, begin, end in _calls(there):
        for our_begin, our_end in ours.get(key, []):
            highs.append(our_end - begin)  # they began before we ended
            lows.append(our_begin - end)  # and we before they ended
    return _Bounds(max(lows), min(highs)) if lows else None


def _calls(files: Sequence[RankFile]) -> Iterator[tuple[tuple[str, int], int, int]]:
    for file in files:
        ids = {one["name"]: one["id"] for one in file.content["communicators"]}
        for entry in file.content["entries"]:
            if entry["state"] != "completed" or not _synchronous(entry):
                continue
            communicator = ids.get(entry["process_group"][0], "")
            if not communicator:  # of a rank that is alone in it
                continue
            key = (communicator, entry["collective_seq_id"])
            yield key, entry["time_created_ns"], entry["time_discovered_completed_ns"]


def _synchronous(entry: dict[str, Any]) -> bool:
    name = entry["profiling_name"].partition(":")[2]
    if name == "barrier":
        return True
    # An empty message is not sent, so a rank that gives or gets nothing waits for nobody.
    return name in ("all_reduce", "reduce_scatter") and entry["bytes_in"] > 0


def _probed(here: Sequence[RankFile], there: Sequence[RankFile]) -> tuple[int, int] | None:
    """Return offset and error from two probes against the same coordinator's clock."""
    for ours in here:
        for theirs in there:
            for a, b in _pairs(ours, theirs):
                coordinators = {one["clock"]["coordinator"] for one in (a, b) if one["clock"]}
                if len(coordinators) != 1:
                    continue
                readings = [_reading(one, *coordinators) for one in (a, b)]
                if None not in readings:
                    (our_ns, our_trip_ns), (their_ns, their_trip_ns) = readings
                    return their_ns - our_ns, (our_trip_ns + their_trip_ns) // 2
    return None


def _reading(communicator: dict[str, Any], coordinator: int) -> Any:
    """Return what to add to a rank's times to get its coordinator's, and the round trip."""
    if communicator["rank"] == coordinator:
        return 0, 0
    clock = communicator["clock"]
    return None if clock is None else (clock["offset_ns"], clock["round_trip_ns"])


def _pairs(ours: RankFile, theirs: RankFile) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for a in ours.content["communicators"]:
        for b in theirs.content["communicators"]:
            if a["id"] and a["id"] == b["id"]:
                yield a, b
