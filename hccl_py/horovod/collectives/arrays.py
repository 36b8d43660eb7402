"""The operations that the collectives need of a library of arrays, and numpy's.

`hccl_py.horovod.torch.tensors` has torch's. TensorFlow's tensors become numpy's arrays.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Array = TypeVar("Array", bound=Any)


class Arrays(Protocol[Array]):
    """How one library makes, copies and scales its arrays."""

    def ready(self, array: Array) -> Array:
        """Return `array` if it is plain memory of this host, else a copy that is."""

    def output(self, array: Array) -> Array:
        """Return where the result of a call on `array` goes: a new one like it, or itself."""

    def empty(self, shape: Sequence[int], like: Array) -> Array:
        """Make an array in host memory, with the element type of another."""

    def beside(self, made: Array, given: Array) -> Array:
        """Return what `empty` made, on the device of another."""

    def assign(self, target: Array, source: Array) -> None:
        """Copy the elements of `source` to `target`."""

    def scale(self, array: Array, factor: float) -> None:
        """Multiply in place; integers are cut off."""

    def pack(self, arrays: Sequence[Array]) -> Array:
        """Copy arrays of one element type one after the other into a new one."""

    def unpack(self, flat: Array, arrays: Sequence[Array]) -> None:
        """Copy back what `pack` packed."""


class _NumpyArrays:
    """numpy's arrays, and what numpy makes arrays of."""

    def ready(self, array: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.asarray(array, order="C")

    def output(self, array: npt.ArrayLike) -> npt.NDArray[Any]:
        return np.empty_like(array, order="C", subok=False)

    def empty(self, shape: Sequence[int], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.empty(shape, like.dtype)

    def beside(self, made: npt.NDArray[Any], given: npt.ArrayLike) -> npt.NDArray[Any]:
        return made

    def assign(self, target: npt.NDArray[Any], source: npt.ArrayLike) -> None:
        np.copyto(target, source)

    def scale(self, array: npt.NDArray[Any], factor: float) -> None:
        np.multiply(array, factor, out=array, casting="unsafe")

    def pack(self, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([each.reshape(-1) for each in arrays])

    def unpack(self, flat: npt.NDArray[Any], arrays: Sequence[npt.NDArray[Any]]) -> None:
        begin = 0
        for each in arrays:
            np.copyto(each, flat[begin : begin + each.size].reshape(each.shape))
            begin += each.size


ARRAYS: Arrays[Any] = _NumpyArrays()
