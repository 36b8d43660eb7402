"""Buffers between guard bytes, in any element type."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from oracle import Array

_GUARD_BYTES = 72  # not a multiple of a cache line: buffers start anywhere
_GUARD = 0xA5


class Guarded:
    """A buffer of its own, with bytes on both sides that nobody may touch.

    Attributes:
        buffer: numpy array; torch tensor for bfloat16, which numpy lacks.
    """

    def __init__(self, values: Array, dtype: str, make: Callable[..., Array] = np.empty) -> None:
        item = torch.bfloat16.itemsize if dtype == "bfloat16" else np.dtype(dtype).itemsize
        num_bytes = values.size * item
        self._raw = make(num_bytes + 2 * _GUARD_BYTES, np.uint8)
        self._raw.fill(_GUARD)
        inside = self._raw[_GUARD_BYTES : _GUARD_BYTES + num_bytes]
        self.buffer: Any
        if dtype == "bfloat16":
            self.buffer = torch.from_numpy(inside).view(torch.bfloat16).reshape(values.shape)
            self.buffer.copy_(torch.from_numpy(values.astype(np.float32)))
        else:
            self.buffer = inside.view(dtype).reshape(values.shape)
            self.buffer[...] = values

    @property
    def bytes(self) -> bytes:
        """What is in the buffer; fails if something was written beside it."""
        for guard in (self._raw[:_GUARD_BYTES], self._raw[-_GUARD_BYTES:]):
            assert (guard == _GUARD).all(), "written outside of the buffer"
        return self._raw[_GUARD_BYTES:-_GUARD_BYTES].tobytes()

    @property
    def values(self) -> Array:
        """What is in the buffer, bfloat16 as float32; fails as `bytes` does."""
        assert self.bytes is not None
        if isinstance(self.buffer, torch.Tensor):
            return np.asarray(self.buffer.float().numpy())
        return np.array(self.buffer)
