"""A `Collective`: a call with all its arguments but the arrays, which runs in the background.

Ranks match calls by the order in which they start them, not by name as Horovod does. Where sizes
may differ between ranks, `start` returns after all ranks have exchanged them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.handle import Handle
from hccl_py.transport.errors import InvalidArgumentError

Sizes = npt.NDArray[np.int64]
"""Numbers of rows, where ranks may differ. The docstring of each Collective has its shape."""
NO_SIZES: Sizes = np.empty(0, np.int64)

Started = Handle[tuple[list[Any], Sizes]]


class Collective(ABC):
    """A call with all its arguments but the arrays."""

    keeps_shapes = False
    """Whether a result has the shape of its input; else the first dimension may differ."""

    @abstractmethod
    def start(self, arrays: Arrays, inputs: Sequence[Any], sizes: Any = None) -> Started:
        """Start the call on the arrays of a library, with one result for each input."""

    def gradient(self) -> "Collective":
        """Return the call that makes the inputs' gradients from the results' and the sizes."""
        raise NotImplementedError("the gradients of allgather and broadcast have no gradient")


def returned(
    arrays: Arrays, made: Sequence[Any], given: Sequence[Any], factor: float = 1.0
) -> list[Any]:
    """Return the results, multiplied by `factor`, on the devices of the inputs."""
    if factor != 1.0:
        for each in made:
            arrays.scale(each, factor)
    return [arrays.beside(one, other) for one, other in zip(made, given, strict=True)]


def row_count(array: Any) -> int:
    """Return the length of the first dimension; InvalidArgumentError: a scalar has none."""
    if not array.shape:
        raise InvalidArgumentError("tensor: expected at least one dimension, got a scalar")
    return int(array.shape[0])


def cut_rows(array: Any, lengths: Sequence[int] | Sizes) -> list[Any]:
    """Return consecutive views with `lengths` rows."""
    ends = np.cumsum(lengths).tolist()
    return [array[end - int(rows) : end] for end, rows in zip(ends, lengths, strict=True)]
