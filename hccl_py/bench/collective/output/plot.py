"""PNG plots: time and busbw against size, a row of two axes for each collective."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.text import size_text
from hccl_py.bench.collective.results import Result, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Measured = Sequence[tuple[Options, Sequence[Row]]]

_LINES = ("-", "--", ":", "-.")
_ROW_INCHES = 4.2
_TITLE_LETTERS = 130


def plot(measured: Measured, title: str, path: Path) -> None:
    """Draw every collective that has data and write the picture.

    Args:
        measured: each case with its rows; cases of one collective share their axes.
        title: stands above the picture.
        path: of the PNG.
    """
    cases: dict[str, list[tuple[Options, Sequence[Row]]]] = {}
    for options, rows in measured:
        if rows and rows[0].size:
            cases.setdefault(options.collective, []).append((options, rows))
    if not cases:
        return
    figure = new_figure(12, _ROW_INCHES * len(cases) + 0.4)
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_LETTERS)), fontsize=11)
    axes = figure.subplots(len(cases), 2, squeeze=False)
    for (collective, each), (time_axes, busbw_axes) in zip(cases.items(), axes, strict=True):
        _draw(each, time_axes, busbw_axes)
        time_axes.set_title(f"{collective}: time of a call (band: 10 % to 90 % of the rounds)")
        time_axes.set_ylabel("time in us")
        busbw_axes.set_title(f"{collective}: bus bandwidth")
        busbw_axes.set_ylabel("busbw in GB/s (10⁹ bytes)")
        for one in (time_axes, busbw_axes):
            _scale(one, sorted({row.size for _, rows in each for row in rows}))
    figure.savefig(path, dpi=130)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure that needs no display, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _draw(cases: Measured, time_axes: Axes, busbw_axes: Axes) -> None:
    """Draw a line for each contender of each case, and the limit of the first case."""
    num_contenders = len(cases[0][1][0].results)
    for number, (options, rows) in enumerate(cases):
        for index in range(num_contenders):
            results = [row.results[index] for row in rows]
            style: dict[str, Any] = {
                "color": f"C{index if len(cases) <= len(_LINES) else number}",
                "linestyle": _LINES[number % len(_LINES)],
                "marker": "o",
                "markersize": 4,
                "label": _label(options, results[0], len(cases) > 1),
            }
            sizes = [row.size for row in rows]
            times = [result.time_us for result in results]
            time_axes.plot(sizes, [time.median for time in times], **style)
            band = [time.p10 for time in times], [time.p90 for time in times]
            time_axes.fill_between(sizes, *band, color=style["color"], alpha=0.15, linewidth=0)
            busbw = [row.busbw(result) for row, result in zip(rows, results, strict=True)]
            busbw_axes.plot(sizes, busbw, **style)
    rows = cases[0][1]
    limits = [(row.size, row.limit_gb_per_s) for row in rows if row.limit_gb_per_s]
    if limits:
        busbw_axes.plot(
            *zip(*limits, strict=True), color="black", lw=1, ls=(0, (1, 2)), label="measured limit"
        )


def _label(options: Options, result: Result, several: bool) -> str:
    if not several:
        return result.contender
    words = [options.dtype, options.reduce_op, "in place" if options.in_place else "out of place"]
    return f"{result.contender}, {' '.join(word for word in words if word != 'none')}"


def _scale(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    shown = sizes[:: -(-len(sizes) // 9)]
    axes.set_xticks(shown, [size_text(size) for size in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("size of a rank's larger buffer")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
