"""A picture of a run: each cell's ratio to its best peer, by collective, ranks and size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.peers.cells import Cell
from hccl_py.bench.collective.output.plot import new_figure
from hccl_py.bench.collective.output.text import size_text

_LEAST, _MOST = 0.25, 4.0
"""Ratios beyond have the colour of these."""


def draw(cells: Sequence[Cell], title: str, path: Path) -> None:
    """Write a PNG: a row for each collective and number of ranks, a column for each size.

    Green says that ours is faster, red that a peer is; in each cell stands the ratio, as in the
    tables. A cell without a figure was not measured. Cells without any draw nothing.
    """
    from matplotlib.colors import LogNorm

    rows = list(dict.fromkeys((cell.group, cell.op, cell.layout) for cell in cells))
    sizes = sorted({cell.size for cell in cells})
    if not rows:
        return
    grid = np.full((len(rows), len(sizes)), np.nan)
    for cell in cells:
        at = rows.index((cell.group, cell.op, cell.layout)), sizes.index(cell.size)
        grid[at] = np.nan if cell.ratio is None else cell.ratio
    figure = new_figure(2.6 + 0.75 * len(sizes), 1.1 + 0.3 * len(rows))
    axes = figure.subplots()
    axes.imshow(grid, cmap="RdYlGn", norm=LogNorm(_LEAST, _MOST), aspect="auto")
    for row, column in np.argwhere(~np.isnan(grid)):
        axes.text(column, row, f"{grid[row, column]:.1f}", ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(sizes)), [size_text(size) if size else "-" for size in sizes])
    axes.set_yticks(
        range(len(rows)), [f"{op}, {layout}, {group}" for group, op, layout in rows], fontsize=8
    )
    axes.set_title(title, fontsize=9)
    figure.savefig(path, dpi=130)
