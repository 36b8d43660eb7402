"""Splitting a communicator by colour, as MPI_Comm_split and ncclCommSplit do."""

from collections.abc import Sequence

import numpy as np

from hccl_py.transport.errors import InvalidArgumentError

_MOST = 1 << 62


def packed(color: int | None, key: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Write what a rank said for the others to read: whether it has no colour, colour, key."""
    for name, number in (("color", color or 0), ("key", key)):
        if not isinstance(number, int | np.integer) or not -_MOST <= number <= _MOST:
            raise InvalidArgumentError(
                f"{name}: expected a whole number of at most 2^62"
                f"{' or None' * (name == 'color')}, got {number!r}"
            )
    return np.array([color is None, color or 0, key], np.int64)


def part_of(rank: int, choices: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Sequence[int]:
    """Return the ranks of this rank's colour, by key and then by rank; none if it has no colour."""
    rows = choices.tolist()
    if rows[rank][0]:
        return ()
    same = [one for one, row in enumerate(rows) if row[:2] == rows[rank][:2]]
    return sorted(same, key=lambda one: rows[one][2])
