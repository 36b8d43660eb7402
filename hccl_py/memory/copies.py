"""Copies that a call makes on its caller's behalf, so that it can work in place, or need not.

What goes into an out-of-place call is copied to where the result is to be, and reduced or moved
there; what is sent from memory that is received into is set aside first.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from hccl_py.memory.buffers import Span, require_kind, span_of
from hccl_py.transport.errors import InvalidArgumentError


def copy_to_output(data: Span, output: Any) -> int:
    """Copy `data` into `output` and return the address of that.

    Raises:
        InvalidArgumentError: `output` differs in element type or count, cannot be written to, or
            shares a part of its memory with `data`; all of it is fine.
    """
    target = span_of(output, "output", writable=True)
    require_kind(target, "output", data, "data")
    if target.count != data.count:
        raise InvalidArgumentError(
            f"output: expected {data.count} elements like data, got {target.count}"
        )
    distance = abs(target.address - data.address)
    if distance == 0 or data.count == 0:
        return target.address
    if distance < data.num_bytes:
        raise InvalidArgumentError(
            "output: expected memory of its own, or that of data, got a part of it; pass output "
            "that does not overlap, or data alone to work in place"
        )
    ctypes.memmove(target.address, data.address, data.num_bytes)  # without the GIL
    return target.address


def set_aside(blocks: Sequence[Span]) -> tuple[object, list[Span]]:
    """Copy `blocks` to memory of their own; return what holds it, and where they are now."""
    holder = np.empty(sum(block.num_bytes for block in blocks), np.uint8)
    address, copies = holder.ctypes.data, []
    for block in blocks:
        ctypes.memmove(address, block.address, block.num_bytes)
        copies.append(Span(address, block.count, block.kind))
        address += block.num_bytes
    return holder, copies
