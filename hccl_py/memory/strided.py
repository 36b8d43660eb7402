"""Finds tensors with gaps that share memory; exactly, as columns may lie between columns.

A tensor is given by its address, shape and strides, as in torch and numpy.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.exceptions import TooHardError

_MOST_WORK = 1_000_000
_MOST_COUNTED = 1 << 24


class Elements(NamedTuple):
    """Elements in memory; strides are in elements, none is negative."""

    address: int
    item_bytes: int
    shape: Sequence[int]
    strides: Sequence[int]

    @property
    def end(self) -> int:
        """Address behind the last byte."""
        if 0 in self.shape:
            return self.address
        steps = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return self.address + (steps + 1) * self.item_bytes

    def share_memory(self) -> bool:
        """Return whether two of these elements share memory, or deciding takes too long."""
        wide = sorted((step, n) for n, step in zip(self.shape, self.strides, strict=True) if n != 1)
        reach = 0
        for step, n in wide:
            if step <= reach:
                break
            reach += (n - 1) * step
        else:
            return False
        count = math.prod(n for _, n in wide)
        if not 0 < count <= _MOST_COUNTED:
            return count > 0
        offsets = np.zeros(1, np.int64)
        for step, n in wide:
            offsets = np.add.outer(offsets, step * np.arange(n)).ravel()
        return len(np.unique(offsets)) < count

    def meet(self, other: "Elements") -> bool:
        """Return whether some element here shares memory with one there."""
        if max(self.address, other.address) >= min(self.end, other.end):
            return False
        try:
            # numpy's stub knows two special values only.
            return np.shares_memory(self._array(), other._array(), _MOST_WORK)  # type: ignore[arg-type]
        except TooHardError:
            return True

    def _array(self) -> np.ndarray[Any, Any]:
        return np.asarray(_Interface(self))


class _Interface:
    """Lets numpy make an array without reading the memory."""

    def __init__(self, elements: Elements) -> None:
        address, item_bytes, shape, strides = elements
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": f"|V{item_bytes}",
            "shape": tuple(shape),
            "strides": tuple(step * item_bytes for step in strides),
        }


def first_two_that_meet(several: Sequence[Elements]) -> tuple[int, int] | None:
    """Return the indices of the first two that share memory, in order."""
    order = sorted(range(len(several)), key=lambda index: several[index].address)
    open_: list[int] = []
    for index in order:
        begin = several[index].address
        open_ = [other for other in open_ if several[other].end > begin]
        for other in open_:
            if several[other].meet(several[index]):
                return min(index, other), max(index, other)
        open_.append(index)
    return None
