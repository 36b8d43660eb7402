"""The table of measurements: header and rows, as text, Markdown or CSV."""

import csv
import io
import re
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
    "cpu us": 9,
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
    *("cpu us", "algbw GB/s", "limit", "ratio", "wrong"),
)
"""Columns that a narrow terminal omits, in this order."""

_CSV_COLUMNS = (
    *("collective", "size_bytes", "count", "type", "op", "root", "place", "by"),
    *("time_us", "round_p10_us", "round_p90_us", "p50_us", "p90_us", "p99_us", "max_us"),
    *(
        "ranks_spread",
        "cpu_us",
        "algbw_gb_per_s",
        "busbw_gb_per_s",
        "limit_share",
        "wrong_elements",
    ),
    *("ratio", "ratio_p10", "ratio_p90", "doubt"),
)


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
            return [_csv_line(_CSV_COLUMNS)] if first else []
        if self._options.markdown:
            above = [] if first else ["", f"### {self.title}", ""]
            return above + markdown_lines([self.columns])
        return [*([] if first else ["", f"# {self.title}"]), self._line(self.columns)]

    def row(self, row: Row) -> list[str]:
        """Make the lines of one size, one for each contender.

        Markdown and CSV have the doubts in a column; `doubtful` sums them up below a text.
        """
        if self._csv:
            return [_csv_line(self._csv_cells(row, result)) for result in row.results]
        lines = []
        for result in row.results:
            cells = self.cells(row, result)
            if self._options.markdown and row.doubts and result is row.results[0]:
                cells["doubt"] += " " + "; ".join(row.doubts)
            lines.append(self._line([cells[name] for name in self.columns]))
        return lines

    def cells(self, row: Row, result: Result) -> dict[str, str]:
        """Make the cells of one contender at one size, by column."""
        calls, options = result.calls_us, self._options
        share, spread = row.share(result), result.rank_spread
        ratio = None if result is row.results[0] else row.ratio(result)
        cpu_us = result.rank_cpu_us
        return {
            "size": str(row.size),
            "count": str(row.count),
            "type": options.dtype,
            "op": options.reduce_op,
            "root": str(options.root) if CASES[options.collective].has_root else "-1",
            "place": "in" if options.in_place else "out",
            "by": result.contender,
            "time us": number(result.time_us.median),
            **{name: number(calls[name]) if calls else "-" for name in ("p50", "p99")},
            "ranks": "-" if spread is None else f"{spread:.0%}",
            "cpu us": "-" if cpu_us is None else number(cpu_us),
            "algbw GB/s": number(row.algbw(result)),
            "busbw GB/s": number(row.busbw(result)),
            "limit": "-" if share is None else f"{share:.0%}",
            "wrong": "-" if result.wrong is None else str(result.wrong),
            "ratio": f"{number(ratio.median)}x" if ratio else "",
            "ratio p10-p90": f"{number(ratio.p10)}-{number(ratio.p90)}" if ratio else "",
            "doubt": "!" if row.doubts else "",
        }

    def _csv_cells(self, row: Row, result: Result) -> list[object]:
        """Make plain numbers, in the order of `_CSV_COLUMNS`; empty: there is none."""
        options, time, calls = self._options, result.time_us, result.calls_us
        root = options.root if CASES[options.collective].has_root else None
        what = [options.collective, row.size, row.count, options.dtype, options.reduce_op, root]
        ratio = None if result is row.results[0] else row.ratio(result)
        return [
            *(*what, "in" if options.in_place else "out", result.contender),
            *(time.median, time.p10, time.p90),
            *(calls.get(name) for name in ("p50", "p90", "p99", "max")),
            *(result.rank_spread, result.rank_cpu_us),
            *(row.algbw(result), row.busbw(result), row.share(result), result.wrong),
            *((ratio.median, ratio.p10, ratio.p90) if ratio else (None, None, None)),
            "; ".join(row.doubts),
        ]

    def _line(self, cells: Sequence[str]) -> str:
        if self._options.markdown:
            return markdown_lines([cells])[0]
        return padded(cells, [self._widths[name] for name in self.columns]).rstrip()


def _csv_line(cells: Sequence[object]) -> str:
    line = io.StringIO()
    plain = (f"{cell:.6g}" if isinstance(cell, float) else cell for cell in cells)
    csv.writer(line, lineterminator="").writerow(plain)
    return line.getvalue()


def doubtful(rows: Sequence[Row]) -> list[str]:
    """Sum the doubts of all rows up: a line for each kind, with the first of its kind."""
    kinds: dict[str, list[str]] = {}
    for doubt in (doubt for row in rows for doubt in row.doubts):
        kinds.setdefault(re.sub(r"[\d.]+", "", doubt), []).append(doubt)
    num_rows = sum(bool(row.doubts) for row in rows)
    lines = [f"# {num_rows} of {len(rows)} sizes are doubtful (!):"] if num_rows else []
    most = sorted(kinds.values(), key=len, reverse=True)
    return lines + [f"#   {len(doubts)} times, first: {doubts[0]}" for doubts in most]


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
    single = "of single calls, where a few slow ones count less than in a mean"
    return (
        f"time: {how}; p50, p99: {single}; ranks: spread from the fastest "
        "to the slowest; cpu: of a rank, for a call"
    )


def _where(options: Options) -> str:
    if options.veth_links is None:
        return "1 node" if options.nnodes == 1 else f"{options.nnodes} emulated nodes"
    links = "1 veth link" if options.veth_links == 1 else f"{options.veth_links} veth links"
    rate = f" of {options.rate_mbit:g} Mbit/s" if options.rate_mbit else ""
    return f"{options.nnodes} network namespaces joined by {links}{rate}"
