"""Predictions as a chart for the terminal: a line for each size, a letter for each algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import ascii_letters

from hccl_py.lab.plan_command.prediction_report import Predicted, size_text, time_text

_WIDTH = 64


def chart_lines(predicted: Sequence[Predicted], names: Sequence[str]) -> Iterator[str]:
    """Draw time and busbw on logarithmic axes; letters at one place stand side by side."""
    letters = dict(zip(names, ascii_letters, strict=False))
    times = [
        (one.bytes, {letters[name]: us for name, us in one.times_us.items() if name in letters})
        for one in predicted
    ]
    busbw = [
        (one.bytes, {letters[name]: one.busbw(name) for name in one.times_us if name in letters})
        for one in predicted
    ]
    yield "# " + ", ".join(f"{letter} {name}" for name, letter in letters.items())
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
        for letter, value in sorted(row.items(), key=lambda one: one[1]):
            share = math.log(value / least) / math.log(most / least) if most > least else 0.0
            line = line.ljust(round(share * (_WIDTH - 1))) + letter
        yield f"# {size_text(num_bytes):>7}  {line}"
