"""The operations that the collectives need of a library of arrays, here numpy's.

`hccl_py.horovod.torch.tensors` has torch's. TensorFlow's tensors become numpy's arrays.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Arrays:
    """Makes, copies and scales numpy's arrays; subclasses do so for other libraries."""

    def ready(self, array: Any) -> Any:
        """Return `array` if it is plain memory of this host, else a copy that is."""
        return np.asarray(array, order="C")

    def output(self, array: Any) -> Any:
        """Return the array for the result of a call on `array`: a new one like it, or itself."""
        return np.empty_like(array, order="C", subok=False)

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        """Make an array in host memory, with the element type of another."""
        return np.empty(shape, like.dtype)

    def beside(self, made: Any, given: Any) -> Any:
        """Return an array that `empty` made, on the device of another."""
        return made

    def assign(self, target: Any, source: Any) -> None:
        """Copy the elements of `source` to `target`."""
        np.copyto(target, source)

    def scale(self, array: Any, factor: float) -> None:
        """Multiply in place; integers are truncated."""
        np.multiply(array, factor, out=array, casting="unsafe")

    def pack(self, arrays: Sequence[Any]) -> Any:
        """Concatenate arrays of one element type in a new one."""
        return np.concatenate([each.reshape(-1) for each in arrays])

    def unpack(self, flat: Any, arrays: Sequence[Any]) -> None:
        """Copy back what `pack` packed."""
        begin = 0
        for each in arrays:
            np.copyto(each, flat[begin : begin + each.size].reshape(each.shape))
            begin += each.size


ARRAYS = Arrays()
