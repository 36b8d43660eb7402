"""Numbers as ranges: "ranks 0-3, 8" for messages, "0-3,8" in the kernel's format."""

from collections.abc import Iterable


def parse_ranges(text: str) -> frozenset[int]:
    """Parse a list of the kernel; ValueError: it is not one. Empty is no number."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else []:
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


def ranges(numbers: Iterable[int], comma: str = ", ") -> str:
    """Write numbers as ranges, in ascending order and without repeats."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return comma.join("-".join(map(str, run)) for run in runs)


def name_ranks(numbers: Iterable[int]) -> str:
    """Name ranks in a message: "rank 3", "ranks 0-2, 8"."""
    found = set(numbers)
    return f"rank{'s' * (len(found) > 1)} {ranges(found)}"
