"""Splitting a communicator by colour, as MPI_Comm_split and ncclCommSplit do."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hccl_py.transport.errors import InvalidArgumentError

_SMALLEST, _LARGEST = -(1 << 62), 1 << 62


class Choice(NamedTuple):
    """What a rank said: its colour (None: it is in no part), and what it is sorted by."""

    color: int | None
    key: int


def packed(color: int | None, key: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Write a choice for the others to read.

    Raises:
        InvalidArgumentError: a number is none, or too large.
    """
    for name, number in (("color", 0 if color is None else color), ("key", key)):
        if not isinstance(number, int | np.integer) or not _SMALLEST <= number <= _LARGEST:
            raise InvalidArgumentError(
                f"{name}: expected a whole number of at most 2^62"
                f"{' or None' * (name == 'color')}, got {number!r}"
            )
    return np.array([color is None, color or 0, key], np.int64)


def part_of(rank: int, choices: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Sequence[int]:
    """Return the ranks of this rank's colour, by key and then by rank; none if it has no colour."""
    rows = [Choice(None if absent else color, key) for absent, color, key in choices.tolist()]
    if rows[rank].color is None:
        return ()
    same = [one for one, row in enumerate(rows) if row.color == rows[rank].color]
    return sorted(same, key=lambda one: (rows[one].key, one))
