"""What `hccl-bench -v` prints of a rank's counters: a table of devices and one of paths."""

from __future__ import annotations

from collections.abc import Sequence

from hccl_py.observe.statistics import PathStatistics, Statistics

_DEVICE_WIDTHS = (10, 12, 16, 10, 8, 11)
_PATH_WIDTHS = (5, 12, 16, 7, 8, 10, 8, 11)


def describe(counted: Statistics) -> str:
    """Make the lines, each a comment like the others around the table of results."""
    lines = [
        f"{counted['collectives']} collectives, {counted['rendezvous']} on registered memory, "
        f"{counted['sleeps']} sleeps, {counted['doorbells']} doorbells; sent by rank 0:",
        _line(
            ("device", "messages", "bytes", "stalls", "retries", "reconnects"), _DEVICE_WIDTHS, ""
        ),
    ]
    for name, device in counted["devices"].items():
        if device["messages"]:
            numbers = (device["messages"], device["bytes"], device["stalls"], device["retries"])
            lines.append(_line((name, *numbers, device["reconnects"]), _DEVICE_WIDTHS, ""))
    if counted["paths"]:
        names = ("peer", "messages", "bytes", "share", "GB/s", "stalls", "retries", "reconnects")
        lines.append(_line(names, _PATH_WIDTHS, "path, all lanes together"))
        lines += _path_lines(counted["paths"])
    return "\n".join(lines)


def _path_lines(paths: Sequence[PathStatistics]) -> list[str]:
    """One line for each path to each peer; the share is of what that peer was sent."""
    lanes_of: dict[tuple[int, str], list[PathStatistics]] = {}
    sent_to: dict[int, int] = {}
    for path in paths:
        lanes_of.setdefault((path["peer"], path["path"]), []).append(path)
        sent_to[path["peer"]] = sent_to.get(path["peer"], 0) + path["bytes"]
    lines = []
    for (peer, name), lanes in lanes_of.items():
        num_bytes = sum(lane["bytes"] for lane in lanes)
        share = num_bytes / sent_to[peer] if sent_to[peer] else 0.0
        cells = (
            peer,
            sum(lane["messages"] for lane in lanes),
            num_bytes,
            f"{100 * share:.1f}%",
            _rate([lane["bytes_per_second"] for lane in lanes]),
            sum(lane["stalls"] for lane in lanes),
            sum(lane["retries"] for lane in lanes),
            sum(lane["reconnects"] for lane in lanes),
        )
        broken = sum(lane["connected"] is False for lane in lanes)
        state = f" ({broken} of {len(lanes)} connections down)" if broken else ""
        lines.append(_line(cells, _PATH_WIDTHS, name + state))
    return lines


def _rate(measured: Sequence[float]) -> str:
    """The rate of a path's lanes; it is measured only while a lane has a full send buffer."""
    rate = sum(measured) / 1e9
    return f"{rate:.2f}" if rate else "-"


def _line(cells: Sequence[object], widths: Sequence[int], last: str) -> str:
    padded = [str(cell).rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return ("# " + " ".join(padded) + ("  " + last if last else "")).rstrip()
