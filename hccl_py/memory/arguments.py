"""Checks of a call's arguments, and copies of input that the call would overwrite."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hccl_py.memory.buffers import span_of, wrong_type
from hccl_py.memory.element_types import ElementType, Span
from hccl_py.transport import _core
from hccl_py.transport.arguments import shown
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp


def check_op(op: object, kind: ElementType) -> None:
    """Raise InvalidArgumentError unless `op` is a ReduceOp for these elements."""
    if hasattr(op, "dtype") and getattr(op, "shape", None) != ():
        raise InvalidArgumentError(
            f"op: expected a ReduceOp, got {type(op).__name__}; to leave data as it is, pass "
            "what takes the result as output="
        )
    if not isinstance(op, int) or op not in range(len(ReduceOp)):
        raise wrong_op(op)
    if not kind.can_reduce(op):
        raise InvalidArgumentError(
            f"op: expected one that is defined for elements of type {kind.name}, "
            f"got {ReduceOp(op).name.lower()}"
        )


def wrong_op(op: object) -> InvalidArgumentError:
    """Make the error for a value that is not a ReduceOp: it suggests the intended one."""
    names = [member.name for member in ReduceOp]
    # A ReduceOp of torch has a name too, and a function such as max.
    given = (op, getattr(op, "name", None), getattr(op, "__name__", None))
    words = {word.upper() for word in given if isinstance(word, str)}
    meant = [name for name in names if any(word and name.startswith(word) for word in words)]
    instead = meant[0] if len(meant) == 1 else "SUM"
    how = "write" if len(meant) == 1 else "write for example"
    return InvalidArgumentError(
        f"op: expected a ReduceOp, got {shown(op)}; {how} hccl_py.ReduceOp.{instead} "
        f"(there are {', '.join(names)})"
    )


def check_block(
    name: str, block: Span, other_name: str, other: Span, rank: int | None = None
) -> None:
    """Raise InvalidArgumentError unless a block has the type and size of another buffer."""
    if block.kind is not other.kind:
        raise wrong_type(name, block, other_name, other)
    if block.count != other.count:
        expected = f"{other.count} elements like {other_name}, got {block.count}"
        which = "" if rank is None else f"block {rank} to have "
        raise InvalidArgumentError(f"{name}: expected {which}{expected}")


Naming = Callable[[int], str]
"""The name of a block of an argument, by its index."""


def naming(argument: str, given: object) -> Naming:
    """Return a function that names an argument's blocks in errors."""
    if isinstance(given, (list, tuple)):
        return lambda index: f"{argument}[{index}]"
    return lambda _: argument


def check_apart(
    outputs: Sequence[Span], inputs: Sequence[Span], rank: int, names: tuple[Naming, Naming]
) -> None:
    """Raise InvalidArgumentError if an output shares memory with another one, or with an input.

    Output and input i of a rank may be the same memory; a single block is that of `rank`.
    """
    numbered = [
        [
            (block.address, block.num_bytes, rank if len(blocks) == 1 else index)
            for index, block in enumerate(blocks)
        ]
        for blocks in (outputs, inputs)
    ]
    found = _core.find_overlap(*numbered)
    if found is not None:
        output, other, is_input = found
        raise overlapping(names[0](output), names[is_input](other), is_input)


def overlapping(output: str, other: str, is_input: bool) -> InvalidArgumentError:
    """Return the error of a call whose output shares memory with another block."""
    instead = "give each output memory of its own"
    if is_input:
        instead = "pass memory that does not overlap, or exactly the same block to work in place"
    return InvalidArgumentError(
        f"{output}: expected memory apart from that of {other}, got memory that overlaps it; "
        f"{instead}"
    )


def check_output(data: Span, output: Any) -> Span:
    """Return the output of a call on `data`: the same memory, or memory apart from it."""
    target = span_of(output, "output", writable=True)
    check_block("output", target, "data", data)
    distance = abs(target.address - data.address)
    if 0 < distance < data.num_bytes:
        raise InvalidArgumentError(
            "output: expected memory of its own, or that of data, got a part of it; pass output "
            "that does not overlap, or data alone to work in place"
        )
    return target


def set_aside(blocks: Sequence[Span]) -> tuple[object, list[Span]]:
    """Copy `blocks` to new memory; return its holder, and the copies."""
    holder = np.empty(sum(block.num_bytes for block in blocks), np.uint8)
    address, copies = holder.ctypes.data, []
    for block in blocks:
        ctypes.memmove(address, block.address, block.num_bytes)
        copies.append(Span(address, block.count, block.kind))
        address += block.num_bytes
    return holder, copies
