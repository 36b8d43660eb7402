"""What the measurements look like: header, table rows, Markdown, JSON."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hccl_py.bench.collective.measure import Result, Row
from hccl_py.bench.collective.options import Options

_WIDTHS = {
    "collective": 14,
    "size": 11,
    "count": 11,
    "type": 8,
    "op": 7,
    "by": 10,
    "time us": 10,
    "p10": 10,
    "p90": 10,
    "algbw GB/s": 10,
    "busbw GB/s": 10,
    "wrong": 5,
    "ratio": 7,
    "ratio p10-p90": 13,
}
_RATIO_COLUMNS = ("ratio", "ratio p10-p90")


class Table:
    """The table of one run, a line at a time."""

    def __init__(self, options: Options) -> None:
        """Choose the columns and their form."""
        self._options = options
        self._compares = len(options.contenders) > 1
        hidden = () if self._compares else _RATIO_COLUMNS
        self._columns = [name for name in _WIDTHS if name not in hidden]
        if not options.csv:
            self._columns.remove("collective")

    def header(self, first: bool) -> list[str]:
        """Make the lines above the first row; later tables of a run get a title, CSV gets none."""
        if self._options.csv:
            return [self._line(self._columns)] if first else []
        if self._options.markdown:
            title = [] if first else ["", f"### {self._options.op}", ""]
            return [*title, self._line(self._columns), "|" + "--:|" * len(self._columns)]
        return [*([] if first else ["", f"# {self._options.op}"]), self._line(self._columns)]

    def row(self, row: Row) -> list[str]:
        """Make the lines of one size, one for each contender."""
        lines = []
        for result in row.results:
            cells = self._cells(row, result)
            if self._compares:
                cells += _ratio_cells(row, result)
            lines.append(self._line(cells))
        return lines

    def _cells(self, row: Row, result: Result) -> list[str]:
        time = result.time_us
        return [
            *([self._options.op] if self._options.csv else []),
            str(row.size),
            str(row.count),
            self._options.dtype,
            self._options.reduce_op,
            result.contender,
            *(number(value) for value in (time.median, time.p10, time.p90)),
            number(row.algbw(result)),
            number(row.busbw(result)),
            str(result.wrong),
        ]

    def _line(self, cells: Sequence[str]) -> str:
        if self._options.csv:
            return ",".join(cells)
        widths = [_WIDTHS[name] for name in self._columns]
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        if self._options.markdown:
            return "| " + " | ".join(cell.strip() for cell in padded) + " |"
        return " ".join(padded)


def _ratio_cells(row: Row, result: Result) -> list[str]:
    """The comparison with the first contender; its own row has none."""
    if result is row.results[0]:
        return ["", ""]
    ratio = row.ratio(result)
    return [f"{number(ratio.median)}x", f"{number(ratio.p10)}-{number(ratio.p90)}"]


def number(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def introduction(
    collectives: Sequence[Options], argv: Sequence[str], facts: dict[str, Any]
) -> list[str]:
    """Say what is measured, on what, when and how: all that a table needs to be quoted."""
    options = collectives[0]
    names = ", ".join(each.op for each in collectives)
    machine, versions = facts["machine"], facts["versions"]
    where = _where(options)
    through = "torch.distributed" if options.api == "torch" else "hccl_py.Communicator"
    first, *others = options.contenders
    beside = f", beside {' and '.join(others)}" if others else ""
    lines = [
        shlex.join(["hccl-bench", *argv]),
        f"{names}: {options.world_size} ranks on {where}, through {through}{beside}; "
        + ", ".join(f"{name} {number}" for name, number in versions.items()),
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['system']}; "
        + facts["date"],
        "time: median over rounds of the mean over calls and ranks"
        + (f"; ratio: time of {' or '.join(others)} / time of {first}" if others else ""),
    ]
    if options.markdown:
        return [f"- `{lines[0]}`", *(f"- {line}" for line in lines[1:]), ""]
    return [f"# {line}" for line in lines]


def _where(options: Options) -> str:
    if options.veth_links is None:
        return "1 node" if options.nnodes == 1 else f"{options.nnodes} emulated nodes"
    links = "1 veth link" if options.veth_links == 1 else f"{options.veth_links} veth links"
    return f"2 network namespaces joined by {links}"


def document(
    measured: Sequence[tuple[Options, Sequence[Row]]], argv: Sequence[str], facts: dict[str, Any]
) -> dict[str, Any]:
    """Make what --json writes.

    Args:
        measured: each collective with its rows.
        argv: the command line, for the record.
        facts: machine, versions and date.
    """
    options = measured[0][0]
    return {
        "schema": 2,
        "command": shlex.join(["hccl-bench", *argv]),
        **facts,
        "method": "time_us: over rounds, of the mean over a round's calls and over the ranks",
        "world_size": options.world_size,
        "collectives": [
            {"options": _settings(each), "sizes": [_size_document(row) for row in rows]}
            for each, rows in measured
        ],
    }


def _settings(options: Options) -> dict[str, Any]:
    """The options that were given or have a default."""
    settings = asdict(options) | {"json_path": None}
    return {name: value for name, value in settings.items() if value is not None}


def _size_document(row: Row) -> dict[str, Any]:
    """One size with everything that was measured there."""
    return {
        "size": row.size,
        "count": row.count,
        "busbw_factor": row.busbw_factor,
        "contenders": {
            result.contender: {
                "time_us": asdict(result.time_us),
                "algbw_gb_per_s": row.algbw(result),
                "busbw_gb_per_s": row.busbw(result),
                "wrong": result.wrong,
                "rounds": len(result.round_us),
                "calls_per_round": result.calls_per_round,
            }
            for result in row.results
        },
        "ratio": {result.contender: asdict(row.ratio(result)) for result in row.results[1:]},
    }


def facts() -> dict[str, Any]:
    """Find out machine, versions and date; asks nothing of torch, only of the system."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {
            "cpu": _cpu_model(),
            "usable_cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(pages / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "hccl-py": version("hccl-py"),
            "torch": version("torch"),
            "numpy": version("numpy"),
            "python": platform.python_version(),
        },
    }


def _cpu_model() -> str:
    """The processor's name as Linux gives it, else its architecture."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    lines = (line.partition(":") for line in text.splitlines())
    names = [value.strip() for name, _, value in lines if name.strip() == "model name"]
    return names[0] if names else platform.machine()
