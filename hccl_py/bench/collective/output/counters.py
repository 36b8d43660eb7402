"""The counters that `hccl-bench -v` prints: a table of devices and one of paths."""

from collections.abc import Sequence

from hccl_py.bench.collective.output.text import text_lines
from hccl_py.observe.statistics import PathStatistics, Statistics

_COUNTED = ("messages", "bytes", "stalls", "retries", "reconnects")


def describe(counted: Statistics) -> str:
    """Return the counters as text; every line but the first begins with "# "."""
    first = (
        f"{counted['collectives']} collectives, {counted['rendezvous']} on registered memory, "
        f"{counted['sleeps']} sleeps, {counted['doorbells']} doorbells; sent by rank 0:"
    )
    devices = [["device", *_COUNTED, ""]]
    for name, device in counted["devices"].items():
        if device["messages"]:
            devices.append([name, *(str(device[what]) for what in _COUNTED), ""])  # type: ignore[literal-required]
    tables = [devices]
    if counted["paths"]:
        head = ["peer", *_COUNTED, "share", "GB/s", "path, all lanes together"]
        tables.append([head, *_path_rows(counted["paths"])])
    return "\n".join([first, *(f"# {line}" for table in tables for line in text_lines(table))])


def _path_rows(paths: Sequence[PathStatistics]) -> list[list[str]]:
    """Make a row for each path to each peer; share: of the bytes sent to that peer."""
    lanes_of: dict[tuple[int, str], list[PathStatistics]] = {}
    sent_to: dict[int, int] = {}
    for path in paths:
        lanes_of.setdefault((path["peer"], path["path"]), []).append(path)
        sent_to[path["peer"]] = sent_to.get(path["peer"], 0) + path["bytes"]
    rows = []
    for (peer, name), lanes in lanes_of.items():
        sums = {what: sum(lane[what] for lane in lanes) for what in _COUNTED}  # type: ignore[literal-required]
        # Measured only while a lane has a full send buffer.
        rate = sum(lane["bytes_per_second"] for lane in lanes) / 1e9
        broken = sum(lane["connected"] is False for lane in lanes)
        state = f" ({broken} of {len(lanes)} connections down)" if broken else ""
        share = sums["bytes"] / max(1, sent_to[peer])
        numbers = [f"{share:.1%}", f"{rate:.2f}" if rate else "-"]
        rows.append([str(peer), *map(str, sums.values()), *numbers, name + state])
    return rows
