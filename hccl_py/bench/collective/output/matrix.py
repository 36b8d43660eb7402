"""The output of --validate: the matrix of links as text and picture, and slow links by name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hccl_py.bench.collective.analysis.validate import LEAST_SHARE, Link
from hccl_py.bench.collective.output.plot import new_figure
from hccl_py.bench.collective.output.text import number, padded, size_text

Name = Callable[[int], str]
"""Returns the name of a rank with its node and host."""


def text(links: Sequence[Link], num_bytes: int, name: Name) -> list[str]:
    """Render both matrices, the classes, and the slow links, a line each."""
    lines = [f"bandwidth in GB/s of messages of {size_text(num_bytes)}, from row to column:"]
    lines += _matrix(_values(links, "rate"))
    lines += ["", "latency in us, half of a ping-pong of 4 bytes:"]
    lines += [*_matrix(_values(links, "latency_us")), ""]
    for crosses, title in enumerate(("inside a node", "between nodes")):
        alike = [link for link in links if link.crosses == bool(crosses)]
        if alike:
            rates = [link.rate for link in alike]
            latency_us = np.median([link.latency_us for link in alike])
            lines.append(
                f"{title}: {len(alike)} links, median {number(float(np.median(rates)))} GB/s "
                f"({number(min(rates))} to {number(max(rates))}), {number(float(latency_us))} us"
            )
    again = [link for link in links if link.was_suspicious and link.class_median is None]
    if again:
        lines.append(f"{len(again)} links were slow once, but not when measured again")
    # The machine became slower meanwhile: their numbers cannot be compared with the matrix.
    unsure = [link for link in again if link.rate < LEAST_SHARE * _median_of_class(link, links)]
    lines += [
        f"as fast as its class in the same moments: {name(link.source)} -> {name(link.target)}: "
        f"{number(link.rate)} GB/s beside {number(link.reference or 0.0)} GB/s"
        for link in unsure
    ]
    below = [link for link in links if link.class_median is not None]
    below.sort(key=lambda link: link.is_hidden)
    named = [describe(link, name) for link in below]
    if unsure:
        named.append("the machine changed its speed meanwhile: measure again when it is idle")
    return [*lines, *(named or ["every link is as fast as its class"])]


def _median_of_class(link: Link, links: Sequence[Link]) -> float:
    return float(np.median([one.rate for one in links if one.crosses == link.crosses]))


def describe(link: Link, name: Name) -> str:
    """Name a link below the limit, with its share of the class's median and the noise."""
    median = link.class_median or link.rate
    where = "between nodes" if link.crosses else "inside a node"
    title = "SLOW" if link.is_slow else "perhaps slow, hidden by noise"
    return (
        f"{title}: {name(link.source)} -> {name(link.target)}: {number(link.rate)} GB/s, "
        f"{link.rate / median:.0%} of {number(median)} GB/s, the median {where} "
        f"(limit {LEAST_SHARE:.0%}, noise {link.error / median:.0%})"
    )


def document(links: Sequence[Link], num_bytes: int) -> dict[str, Any]:
    """Return the links for --json; rates in GB/s, times in us."""
    written = [
        {
            "from": link.source,
            "to": link.target,
            "between_nodes": link.crosses,
            "gb_per_s": link.rate,
            "noise_gb_per_s": link.noise,
            "latency_us": link.latency_us,
            "slow": link.is_slow,
            "hidden_by_noise": link.is_hidden,
            "class_median_gb_per_s": link.class_median,
        }
        for link in links
    ]
    return {"message_bytes": num_bytes, "least_share": LEAST_SHARE, "links": written}


def _values(links: Sequence[Link], what: str) -> np.ndarray[tuple[int, int], Any]:
    """Put an attribute of the links into a matrix, from row to column."""
    n = 1 + max(link.source for link in links)
    values = np.full((n, n), np.nan)
    for link in links:
        values[link.source, link.target] = getattr(link, what)
    return values


def _matrix(values: np.ndarray[tuple[int, int], Any]) -> list[str]:
    cells = [["-" if np.isnan(value) else number(value) for value in row] for row in values]
    widths = [5, *[max(6, *(len(cell) for row in cells for cell in row))] * len(cells)]
    rows = [["", *map(str, range(len(cells)))]]
    rows += [[str(rank), *row] for rank, row in enumerate(cells)]
    return [padded(row, widths) for row in rows]


def plot(links: Sequence[Link], num_bytes: int, title: str, path: Path) -> None:
    """Draw bandwidth and latency of all links; slow ones have a red frame."""
    from matplotlib.colors import LogNorm, Normalize
    from matplotlib.patches import Rectangle

    n, slow = 1 + max(link.source for link in links), [link for link in links if link.is_slow]
    side = max(4.0, 0.55 * n)
    figure = new_figure(2 * side + 3, side + 1.2)
    figure.suptitle(title, fontsize=11)
    both = figure.subplots(1, 2)
    label = {"ha": "center", "va": "center", "fontsize": 8}
    label["bbox"] = {"facecolor": "white", "alpha": 0.6, "edgecolor": "none", "pad": 1}
    for axes, what, colors, unit in (
        (both[0], "rate", "viridis", f"GB/s, messages of {size_text(num_bytes)}"),
        (both[1], "latency_us", "viridis_r", "us, half of a ping-pong of 4 bytes"),
    ):
        values = _values(links, what)
        # From 0, so that nearly equal values have nearly equal colors.
        least, most = np.nanmin(values), np.nanmax(values)
        is_wide = most > 10 * least
        norm = LogNorm(least, most) if is_wide else Normalize(0, most)
        image = axes.imshow(values, cmap=colors, norm=norm)
        figure.colorbar(image, ax=axes, label=unit, shrink=0.85)
        axes.set(xlabel="to rank", ylabel="from rank", xticks=range(n), yticks=range(n))
        for row, column in np.argwhere(~np.isnan(values)) if n <= 16 else ():
            axes.text(column, row, number(values[row, column]), **label)
    both[0].set_title("bandwidth" + (", slow links framed in red" if slow else ""))
    both[1].set_title("latency")
    for link in slow:
        corner = (link.target - 0.5, link.source - 0.5)
        both[0].add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="red", linewidth=3))
    figure.savefig(path, dpi=130)
