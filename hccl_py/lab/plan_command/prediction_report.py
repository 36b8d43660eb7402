"""Predictions as tables, as a chart for the terminal and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple

from hccl_py.command_line import columns, wrapped
from hccl_py.lab.simulation.recorded import RecordedCalls
from hccl_py.quantities import busbw_factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 64
_UNITS = (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1))


class Predicted(NamedTuple):
    """All algorithms of a collective at one size."""

    collective: str
    world_size: int
    bytes: int
    times_us: dict[str, float]
    missing: dict[str, str]  # algorithms that were not simulated, and why
    errors: dict[str, float]  # relative errors of estimated times, see `Simulated`

    @property
    def best(self) -> str:
        """The fastest algorithm."""
        return min(self.times_us, key=lambda name: self.times_us[name], default="none")

    def busbw(self, name: str) -> float:
        """Return GB/s as `hccl-bench` counts them."""
        factor = busbw_factor(self.collective, self.world_size)
        return self.bytes * factor / self.times_us[name] / 1e3


def table_head(names: Sequence[str]) -> str:
    """Return the table's head: time and busbw of each algorithm, in a column or, below, a line."""
    if not _fits(names):
        return f"{'bytes':>7}  {'time and busbw':>22}  algorithm"
    return "  ".join([f"{'bytes':>7}", *(f"{name:>22}" for name in names), "fastest"])


def row(predicted: Predicted, names: Sequence[str]) -> str:
    """Return the line of one size, or where it does not fit the terminal one for each algorithm."""
    cells = {}
    for name in names:
        us = predicted.times_us.get(name)
        text = "-" if us is None else f"{time_text(us)} {predicted.busbw(name):6.2f} GB/s"
        cells[name] = f"{text:>22}"
    size = f"{size_text(predicted.bytes):>7}"
    if _fits(names):
        return "  ".join([size, *cells.values(), predicted.best])
    lines = [f"{cell}  {name}" for name, cell in cells.items() if name != predicted.best]
    best = f"{cells.get(predicted.best, '')}  {predicted.best} (fastest)"
    return "\n".join(f"{size}  {line}" for line in [best, *lines])


def _fits(names: Sequence[str]) -> bool:
    needed = 7 + 24 * len(names) + 2 + max((*map(len, names), 7))
    return not columns() or needed <= columns()


def replay_lines(
    recorded: Sequence[RecordedCalls], predicted: Sequence[Predicted]
) -> Iterator[str]:
    """Make a line for each kind of recorded call, and the totals."""
    head = ("collective", "bytes", "calls", "took", "would take", "with")
    yield "{:14}  {:>9}  {:>6}  {:>10}  {:>10}  {}".format(*head)
    took_us = would_us = 0.0
    for one, its in zip(recorded, predicted, strict=True):
        if not its.times_us:
            yield f"{one.collective:14}  {size_text(one.bytes):>9}  {one.num_calls:6}  " + "".join(
                its.missing.values()
            )
            continue
        us = its.times_us[its.best] * one.num_calls
        took_us, would_us = took_us + one.us, would_us + us
        yield (
            f"{one.collective:14}  {size_text(one.bytes):>9}  {one.num_calls:6}  "
            f"{time_text(one.us):>10}  {time_text(us):>10}  {its.best}"
        )
    yield f"# all calls: took {time_text(took_us)}, would take {time_text(would_us)}"


def chart_lines(predicted: Sequence[Predicted], names: Sequence[str]) -> Iterator[str]:
    """Draw time and busbw on logarithmic axes, an algorithm as a letter."""
    letters = dict(zip(names, ascii_letters, strict=False))
    times = [
        (one.bytes, {letters[name]: us for name, us in one.times_us.items() if name in letters})
        for one in predicted
    ]
    busbw = [
        (one.bytes, {letters[name]: one.busbw(name) for name in one.times_us if name in letters})
        for one in predicted
    ]
    yield wrapped("# " + ", ".join(f"{letter} {name}" for name, letter in letters.items()))
    yield from _chart("time of a call", times, time_text)
    yield from _chart("busbw", busbw, lambda value: f"{value:.3g} GB/s")


def _chart(
    title: str, rows: Sequence[tuple[int, Mapping[str, float]]], text: Callable[[float], str]
) -> Iterator[str]:
    values = [value for _, row in rows for value in row.values()]
    if not values:
        return
    least, most = min(values), max(values)
    yield f"# {title}"
    yield f"# {'':>7}  {text(least)}{text(most):>{_WIDTH - len(text(least))}}"
    for num_bytes, row in rows:
        line = ""
        for at, (letter, value) in enumerate(sorted(row.items(), key=lambda one: one[1])):
            share = math.log(value / least) / math.log(most / least) if most > least else 0.0
            last = _WIDTH - len(row) + at  # leaves room for the letters after it
            line = line.ljust(min(round(share * (_WIDTH - 1)), last)) + letter
        yield f"# {size_text(num_bytes):>7}  {line}"


def draw(predicted: Sequence[Predicted], names: Sequence[str], title: str, path: Path) -> None:
    """Draw time and busbw against size, with matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.6), layout="constrained")
    figure.suptitle(title, fontsize=11)
    time_axes, busbw_axes = figure.subplots(1, 2)
    for name in names:
        known = [one for one in predicted if name in one.times_us]
        sizes = [one.bytes for one in known]
        time_axes.plot(sizes, [one.times_us[name] for one in known], marker="o", ms=4, label=name)
        busbw_axes.plot(sizes, [one.busbw(name) for one in known], marker="o", ms=4, label=name)
    _scale(time_axes, predicted, "predicted time of a call in us")
    _scale(busbw_axes, predicted, "predicted busbw in GB/s (10⁹ bytes)")
    figure.savefig(path, dpi=130)


def _scale(axes: Axes, predicted: Sequence[Predicted], what: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([one.bytes for one in predicted], [size_text(one.bytes) for one in predicted])
    axes.set_title(f"{predicted[0].collective}: {what}")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)


def size_text(num_bytes: int) -> str:
    """Return `64K` for 65536."""
    unit, factor = next((unit, factor) for unit, factor in _UNITS if num_bytes >= factor)
    return f"{num_bytes / factor:.4g}{unit}"


def time_text(us: float) -> str:
    """Return microseconds in the unit that fits, such as `1.5 ms`."""
    for unit, factor in (("s", 1e6), ("ms", 1e3)):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.3g} us"
