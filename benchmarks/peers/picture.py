"""A picture of a run: each case's ratio to its best peer, by collective, ranks and size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.cases import PeerCase
from hccl_py.bench.collective.output.plot import new_figure
from hccl_py.bench.collective.output.text import size_text

_LEAST, _MOST = 0.25, 4.0
"""Ratios beyond these have the colour of these."""
_DARK_BELOW, _DARK_ABOVE = 0.12, 0.84
"""Shares of the colours, which are dark beyond these."""


def draw(cases: Sequence[PeerCase], title: str, path: Path) -> None:
    """Write a PNG: a row for each collective and number of ranks, a column for each size.

    A green square means that hccl is faster, a red one that a peer is; its number is the ratio of
    the tables. A square without a number was not measured. Without cases there is no picture.
    """
    from matplotlib.colors import LogNorm

    rows = list(dict.fromkeys((case.group, case.op, case.layout) for case in cases))
    sizes = sorted({case.size for case in cases})
    if not rows:
        return
    grid = np.full((len(rows), len(sizes)), np.nan)
    for case in cases:
        at = rows.index((case.group, case.op, case.layout)), sizes.index(case.size)
        grid[at] = np.nan if case.ratio is None else case.ratio
    figure = new_figure(2.6 + 0.75 * len(sizes), 1.1 + 0.3 * len(rows))
    axes = figure.subplots()
    norm = LogNorm(_LEAST, _MOST)
    axes.imshow(grid, cmap="RdYlGn", norm=norm, aspect="auto")
    for row, column in np.argwhere(~np.isnan(grid)):
        ratio = grid[row, column]
        colour = "black" if _DARK_BELOW < norm(ratio) < _DARK_ABOVE else "white"
        text = axes.text(column, row, f"{ratio:.1f}", ha="center", va="center", fontsize=8)
        text.set_color(colour)
    axes.set_xticks(range(len(sizes)), [size_text(size) if size else "-" for size in sizes])
    groups = {group for group, _, _ in rows}
    of_group = "" if len(groups) == 1 else ", {}"  # what all rows share stands in the title
    names = [f"{op}, {layout}{of_group.format(group)}" for group, op, layout in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.set_title("; ".join([*(groups if len(groups) == 1 else ()), title]), fontsize=9)
    figure.savefig(path, dpi=130)
