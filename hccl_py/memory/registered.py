"""Registered memory: tensors and arrays that the ranks of a node read and write directly.

Messages of 16 KiB or more from such a buffer are announced instead of copied through shared slots.
`torch_backend/registered_tensors.py` moves torch's tensors there; docs/api/registered.md has the
gain.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl_py.memory.element_types import learn
from hccl_py.transport import _core
from hccl_py.transport.arena import VARIABLE, arena_of_this_process
from hccl_py.transport.arguments import whole_numbers, wrong

_MOST_BYTES = 1 << 47  # of addresses


def empty(shape: int | Sequence[int], dtype: Any = np.float32) -> Any:
    """Make an array or tensor in registered memory.

    The memory is committed at once, not at first use, and returns to the system when its last view
    is freed. The contents of a new buffer are undefined.

    Args:
        shape: as numpy and torch take it.
        dtype: of torch, for a CPU tensor; else of numpy, for an array.

    Returns:
        A torch tensor or a numpy array, C-contiguous. Small ones start at a page, those of 2 MiB
        or more at a multiple of 2 MiB.

    Raises:
        InvalidArgumentError: the shape is invalid, or the type is not plain memory.
        MemoryError: there is not enough memory, or none can be registered; the message says why.
    """
    given = (shape,) if isinstance(shape, int | np.integer) else shape
    dimensions = whole_numbers("shape", given, "whole numbers from 0 on", range(1 << 64))
    of_torch = (type(dtype).__module__, type(dtype).__name__) == ("torch", "dtype")
    try:
        kind = dtype if of_torch else np.dtype(dtype)
    except (TypeError, ValueError):
        raise wrong("dtype", "a type of numpy or torch", dtype) from None
    learn(kind, "dtype")
    num_bytes = math.prod(dimensions) * kind.itemsize
    if num_bytes >= _MOST_BYTES:
        raise MemoryError(f"no {num_bytes} bytes of registered memory: there are no such addresses")
    memory = allocate(num_bytes).array() if num_bytes else np.empty(0, np.uint8)
    return typed(memory, kind).reshape(dimensions)


def typed(memory: Any, dtype: Any) -> Any:
    """View an array of bytes as elements of numpy's or torch's `dtype`; of one dimension."""
    if isinstance(dtype, np.dtype):
        return memory.view(dtype)
    import torch

    return torch.from_numpy(memory).view(dtype) if memory.size else torch.empty(0, dtype=dtype)


def allocate(num_bytes: int) -> _core.Region:
    """Allocate registered memory, which is freed with the returned object; see `empty`."""
    arena = arena_of_this_process()
    try:
        return _core.Region(arena, num_bytes)
    except MemoryError:
        why = arena.unavailable()
        if why:
            raise MemoryError(
                f"this process has no registered memory: {why} (see {VARIABLE})"
            ) from None
        raise MemoryError(
            f"no {num_bytes} bytes of registered memory: {arena.num_allocated()} of the "
            f"{arena.num_bytes()} that {VARIABLE} or this machine's memory allows are in use, or "
            "the machine has no more memory"
        ) from None
