"""What --validate shows: the matrix of links as text and as a picture, and slow links by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hccl_py.bench.collective.analysis.validate import LEAST_SHARE, Link, Slow, Validation
from hccl_py.bench.collective.output.plot import new_figure
from hccl_py.bench.collective.output.text import number, padded, size_text

Name = Callable[[int], str]
"""Says which rank this is, and on which host."""


def text(found: Validation, n: int, name: Name) -> list[str]:
    """Render both matrices, the classes, and the slow links, a line each."""
    lines = [f"bandwidth in GB/s of messages of {size_text(found.num_bytes)}, from row to column:"]
    lines += _matrix(found.links, n, lambda link: number(link.rate))
    lines += ["", "latency in us, half of a ping-pong of 4 bytes:"]
    lines += [*_matrix(found.links, n, lambda link: number(link.latency_us)), ""]
    for crosses, title in enumerate(("inside a node", "between nodes")):
        alike = [link for link in found.links if link.crosses == bool(crosses)]
        if alike:
            rates = [link.rate for link in alike]
            latency_us = np.median([link.latency_us for link in alike])
            lines.append(
                f"{title}: {len(alike)} links, median {number(float(np.median(rates)))} GB/s "
                f"({number(min(rates))} to {number(max(rates))}), {number(latency_us)} us"
            )
    if found.slow_once:
        lines.append(f"{found.slow_once} links were slow once, but not when measured again")
    lines += [describe(one, name) for one in (*found.slow, *found.hidden)]
    if found.slow or found.hidden:
        return lines
    return [*lines, "every link is as fast as its class"]


def describe(slow: Slow, name: Name) -> str:
    """Name a link below the limit, with its share of the class's median and the noise."""
    link = slow.link
    where = "between nodes" if link.crosses else "inside a node"
    title = "SLOW" if slow.is_certain else "perhaps slow, hidden by noise"
    return (
        f"{title}: {name(link.source)} -> {name(link.target)}: {number(link.rate)} GB/s, "
        f"{link.rate / slow.class_median:.0%} of {number(slow.class_median)} GB/s, the median "
        f"{where} (limit {LEAST_SHARE:.0%}, noise {slow.noise / slow.class_median:.0%})"
    )


def document(found: Validation) -> dict[str, Any]:
    """Make what --json writes of the links; rates in GB/s, times in us."""
    below = {(one.link.source, one.link.target): one for one in (*found.slow, *found.hidden)}
    links = []
    for link in found.links:
        one = below.get((link.source, link.target))
        links.append(
            {
                "from": link.source,
                "to": link.target,
                "between_nodes": link.crosses,
                "gb_per_s": link.rate,
                "noise_gb_per_s": link.noise,
                "latency_us": link.latency_us,
                "slow": one is not None and one.is_certain,
                "hidden_by_noise": one is not None and not one.is_certain,
                "class_median_gb_per_s": one.class_median if one else None,
            }
        )
    return {"message_bytes": found.num_bytes, "least_share": LEAST_SHARE, "links": links}


def _matrix(links: Sequence[Link], n: int, cell: Callable[[Link], str]) -> list[str]:
    cells = {(link.source, link.target): cell(link) for link in links}
    widths = [5, *[max(6, *map(len, cells.values()))] * n]
    rows = [["", *map(str, range(n))]]
    rows += [[str(one), *(cells.get((one, to), "-") for to in range(n))] for one in range(n)]
    return [padded(row, widths) for row in rows]


def plot(found: Validation, n: int, title: str, path: Path) -> None:
    """Draw bandwidth and latency of all links; slow ones have a red frame."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    side = max(4.0, 0.55 * n)
    figure = new_figure(2 * side + 3, side + 1.2)
    figure.suptitle(title, fontsize=11)
    both = figure.subplots(1, 2)
    rates = np.full((n, n), np.nan)
    latency_us = np.full((n, n), np.nan)
    for link in found.links:
        rates[link.source, link.target] = link.rate
        latency_us[link.source, link.target] = link.latency_us
    for axes, values, colors, label in (
        (both[0], rates, "viridis", f"GB/s, messages of {size_text(found.num_bytes)}"),
        (both[1], latency_us, "viridis_r", "us, half of a ping-pong of 4 bytes"),
    ):
        # So that nearly equal values have nearly equal colors.
        least, most = np.nanmin(values), np.nanmax(values)
        is_wide = most > 10 * least
        norm = LogNorm(least, most) if is_wide else Normalize(0, most)
        image = axes.imshow(values, cmap=colors, norm=norm)
        figure.colorbar(image, ax=axes, label=label, shrink=0.85)
        axes.set_xlabel("to rank")
        axes.set_ylabel("from rank")
        axes.set_xticks(range(n))
        axes.set_yticks(range(n))
        for row, column in np.argwhere(~np.isnan(values)) if n <= 16 else ():
            axes.text(
                *(column, row, number(values[row, column])),
                ha="center",
                va="center",
                fontsize=8,
                bbox={"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1},
            )
    both[0].set_title("bandwidth" + (", slow links framed in red" if found.slow else ""))
    both[1].set_title("latency")
    for slow in found.slow:
        corner = (slow.link.target - 0.5, slow.link.source - 0.5)
        both[0].add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="red", linewidth=3))
    figure.savefig(path, dpi=130)
