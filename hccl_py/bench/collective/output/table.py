"""What the measurements look like: header and rows, as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from hccl_py.bench.collective.measure import Result, Row
from hccl_py.bench.collective.options import Options

_WIDTHS = {
    "collective": 14,
    "size": 10,
    "count": 9,
    "type": 8,
    "op": 7,
    "root": 4,
    "place": 5,
    "by": 10,
    "time us": 9,
    "p50": 9,
    "p99": 9,
    "ranks": 6,
    "algbw GB/s": 10,
    "busbw GB/s": 10,
    "limit": 6,
    "wrong": 5,
    "ratio": 7,
    "ratio p10-p90": 13,
    "doubt": 5,
}
_MORE_IN_CSV = ("collective", "p90", "max", "round p10", "round p90")
_RATIO_COLUMNS = ("ratio", "ratio p10-p90")


class Table:
    """The table of one run, a line at a time.

    Attributes:
        columns: their names, in order.
        title: of the table.
    """

    def __init__(self, options: Options, as_csv: bool | None = None) -> None:
        """Choose the columns and their form.

        Args:
            options: what is measured.
            as_csv: comma-separated values; None: as the options say.
        """
        self._options = options
        self.title = options.collective
        self._csv = options.csv if as_csv is None else as_csv
        hidden = () if len(options.contenders) > 1 else _RATIO_COLUMNS
        self.columns = [name for name in _WIDTHS if name not in hidden]
        if self._csv:
            self.columns += _MORE_IN_CSV[1:]
        else:
            self.columns.remove("collective")

    def header(self, first: bool) -> list[str]:
        """Make the lines above the first row; later tables of a run get a title, CSV gets none."""
        if self._csv:
            return [self._line(self.columns)] if first else []
        if self._options.markdown:
            above = [] if first else ["", f"### {self.title}", ""]
            return [*above, self._line(self.columns), "|" + "--:|" * len(self.columns)]
        return [*([] if first else ["", f"# {self.title}"]), self._line(self.columns)]

    def row(self, row: Row) -> list[str]:
        """Make the lines of one size, one for each contender, with reasons to doubt them.

        In text a line of its own says why; Markdown and CSV have it in the column.
        """
        lines = []
        for result in row.results:
            cells = self.cells(row, result)
            if self._options.markdown and row.doubts and result is row.results[0]:
                cells["doubt"] += " " + "; ".join(row.doubts)
            lines.append(self._line([cells[name] for name in self.columns]))
        if row.doubts and not self._csv and not self._options.markdown:
            lines.append(f"#   doubtful: {'; '.join(row.doubts)}")
        return lines

    def cells(self, row: Row, result: Result) -> dict[str, str]:
        """Make the cells of one contender at one size, by column."""
        time, calls, options = result.time_us, result.calls_us, self._options
        share, spread = row.share(result), result.rank_spread
        ratio = None if result is row.results[0] else row.ratio(result)
        return {
            "collective": options.collective,
            "size": str(row.size),
            "count": str(row.count),
            "type": options.dtype,
            "op": options.reduce_op,
            "root": str(options.root) if options.has_root else "-1",
            "place": "in" if options.in_place else "out",
            "by": result.contender,
            "time us": number(time.median),
            **{
                name: number(getattr(calls, name)) if calls else "-"
                for name in ("p50", "p90", "p99", "max")
            },
            "round p10": number(time.p10),
            "round p90": number(time.p90),
            "ranks": "-" if spread is None else f"{spread:.0%}",
            "algbw GB/s": number(row.algbw(result)),
            "busbw GB/s": number(row.busbw(result)),
            "limit": "-" if share is None else f"{share:.0%}",
            "wrong": "-" if result.wrong is None else str(result.wrong),
            "ratio": f"{number(ratio.median)}x" if ratio else "",
            "ratio p10-p90": f"{number(ratio.p10)}-{number(ratio.p90)}" if ratio else "",
            "doubt": ("; ".join(row.doubts) if self._csv else "!") if row.doubts else "",
        }

    def _line(self, cells: Sequence[str]) -> str:
        if self._csv:
            line = io.StringIO()
            csv.writer(line, lineterminator="").writerow(cells)
            return line.getvalue()
        if self._options.markdown:
            return "| " + " | ".join(cells) + " |"
        widths = [_WIDTHS[name] for name in self.columns]
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return " ".join(padded).rstrip()


def number(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def lay_out(table: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    """Make the lines of a table, header first; outside Markdown the last column is for notes."""
    if markdown:
        lines = ["| " + " | ".join(cells) + " |" for cells in table]
        return [lines[0], "|" + "--:|" * len(table[0]), *lines[1:]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(cells[:-1], widths, strict=False))
        + f"  {cells[-1]}".rstrip()
        for cells in table
    ]


def introduction(
    collectives: Sequence[Options], argv: Sequence[str], facts: dict[str, Any]
) -> list[str]:
    """Say what is measured, on what, when and how: all that a table needs to be quoted."""
    options = collectives[0]
    names = ", ".join(
        ["links"] if options.validate else dict.fromkeys(each.collective for each in collectives)
    )
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
        _method(options)
        + (f"; ratio: time of {' or '.join(others)} / time of {first}" if others else "")
        + ("; profile: mean, share of a call (least-most over ranks)" if options.profile else ""),
    ]
    if options.markdown:
        return [f"- `{lines[0]}`", *(f"- {line}" for line in lines[1:]), ""]
    return [f"# {line}" for line in lines]


def _method(options: Options) -> str:
    if options.measure == "latency":
        how = "median over rounds of the median over calls, each of its slowest rank"
    else:
        over = ("on rank 0", "and ranks", "on the fastest rank", "on the slowest rank")
        how = f"median over rounds of the mean over calls {over[options.average]}"
    return f"time: {how}; p50, p99: of single calls; ranks: spread from the fastest to the slowest"


def _where(options: Options) -> str:
    if options.veth_links is None:
        return "1 node" if options.nnodes == 1 else f"{options.nnodes} emulated nodes"
    links = "1 veth link" if options.veth_links == 1 else f"{options.veth_links} veth links"
    rate = f" of {options.rate_mbit:g} Mbit/s" if options.rate_mbit else ""
    return f"{options.nnodes} network namespaces joined by {links}{rate}"
