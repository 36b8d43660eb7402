"""The kernel's lists of numbers: "0-3,8,10-11"."""

from collections.abc import Iterable


def parse(text: str) -> frozenset[int]:
    """Read a list; raise ValueError if the text is none. An empty text is an empty list."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def render(numbers: Iterable[int]) -> str:
    """Write numbers as a list, in ascending order and without repeats."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
