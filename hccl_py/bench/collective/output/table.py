"""The table of measurements: header and rows, as text, Markdown or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.text import markdown_lines, number, padded
from hccl_py.bench.collective.results import Result, Row

_WIDTHS = {
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
_LEFT_OUT_FIRST = (
    *("root", "count", "place", "type", "op", "p99", "ratio p10-p90", "p50", "ranks"),
    *("algbw GB/s", "limit", "ratio", "wrong"),
)
"""Columns that a narrow terminal omits, in this order."""

_MORE_IN_CSV = ("p90", "max", "round p10", "round p90")


class Table:
    """The table of one case, a line at a time.

    Attributes:
        columns: their names, in order.
        title: of the table.
    """

    def __init__(
        self, options: Options, contenders: Sequence[str], as_csv: bool | None = None
    ) -> None:
        """Choose the columns and their form.

        Args:
            options: what is measured.
            contenders: names of what is compared.
            as_csv: comma-separated values; None: as the options say.
        """
        self._options = options
        self.title = options.collective
        self._csv = options.csv if as_csv is None else as_csv
        self._widths = _WIDTHS | {"by": max(_WIDTHS["by"], *map(len, contenders))}
        hidden = () if len(contenders) > 1 else ("ratio", "ratio p10-p90")
        self.columns = [name for name in _WIDTHS if name not in hidden]
        if self._csv:
            self.columns = ["collective", *self.columns, *_MORE_IN_CSV]

    def narrow(self, width: int) -> None:
        """Remove columns that do not fit a terminal, the least useful first."""
        for name in _LEFT_OUT_FIRST:
            if sum(self._widths[one] + 1 for one in self.columns) <= width:
                return
            if name in self.columns:
                self.columns.remove(name)

    def header(self, first: bool) -> list[str]:
        """Make the lines above the first row; CSV has them once, later tables have a title."""
        if self._csv:
            return [self._line(self.columns)] if first else []
        if self._options.markdown:
            above = [] if first else ["", f"### {self.title}", ""]
            return above + markdown_lines([self.columns])
        return [*([] if first else ["", f"# {self.title}"]), self._line(self.columns)]

    def row(self, row: Row) -> list[str]:
        """Make the lines of one size, one for each contender, with the doubts.

        In text the doubts are on a line of their own, in Markdown and CSV in a column.
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
            "root": str(options.root) if CASES[options.collective].has_root else "-1",
            "place": "in" if options.in_place else "out",
            "by": result.contender,
            "time us": number(time.median),
            **dict.fromkeys(("p50", "p90", "p99", "max"), "-"),
            **{name: number(value) for name, value in calls.items()},
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
            return markdown_lines([cells])[0]
        return padded(cells, [self._widths[name] for name in self.columns]).rstrip()


def introduction(
    cases: Sequence[Options], command: str, facts: dict[str, Any], contenders: Sequence[str]
) -> list[str]:
    """Make the lines that name what is measured, on which machine, when and how."""
    options = cases[0]
    names = ["links"] if options.validate else dict.fromkeys(each.collective for each in cases)
    machine, versions = facts["machine"], facts["versions"]
    through = "torch.distributed" if options.api == "torch" else "hccl_py.Communicator"
    first, *others = contenders
    beside = f", beside {' and '.join(others)}" if others else ""
    lines = [
        command,
        f"{', '.join(names)}: {options.world_size} ranks on {_where(options)}, through {through}"
        f"{beside}; {', '.join(' '.join(one) for one in versions.items())}",
        f"{machine['cpu']}, {machine['usable_cores']} usable cores, {machine['system']}; "
        + facts["date"],
        _method(options)
        + (f"; ratio: time / time of {first}" if others else "")
        + ("; profile: mean, share of a call (least-most over ranks)" if options.profile else ""),
    ]
    if options.markdown:
        return [f"- `{lines[0]}`", *(f"- {line}" for line in lines[1:]), ""]
    return [f"# {line}" for line in lines]


def _method(options: Options) -> str:
    how = "median over rounds of the median over calls, each of its slowest rank"
    if options.measure == "bw":
        over = ("on rank 0", "and ranks", "on the fastest rank", "on the slowest rank")
        how = f"median over rounds of the mean over calls {over[options.average]}"
    return f"time: {how}; p50, p99: of single calls; ranks: spread from the fastest to the slowest"


def _where(options: Options) -> str:
    if options.veth_links is None:
        return "1 node" if options.nnodes == 1 else f"{options.nnodes} emulated nodes"
    links = "1 veth link" if options.veth_links == 1 else f"{options.veth_links} veth links"
    rate = f" of {options.rate_mbit:g} Mbit/s" if options.rate_mbit else ""
    return f"{options.nnodes} network namespaces joined by {links}{rate}"
