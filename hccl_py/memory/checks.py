"""Checks of the arguments of a call, before anything is sent."""

from hccl_py.memory.buffers import Kind, Span, require_kind
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

_MAX_TAG = (1 << 64) - 1


def check_op(op: int, kind: Kind) -> None:
    """Raise InvalidArgumentError unless the reduce op is defined for the elements."""
    try:
        known = op in kind.ops
    except TypeError:  # an array
        known = False
    if not known:
        raise not_reducible(op, kind)


def not_reducible(op: object, kind: Kind) -> InvalidArgumentError:
    """Return the error for what is no reduce op of such elements."""
    if hasattr(op, "dtype") and getattr(op, "shape", None) != ():
        return InvalidArgumentError(
            f"op: expected a ReduceOp, got {type(op).__name__}; to leave data as it is, pass "
            "what takes the result as output="
        )
    if not isinstance(op, int) or op not in range(len(ReduceOp)):
        return InvalidArgumentError(f"op: expected a ReduceOp, got {op!r}")
    name = ReduceOp(op).name.lower()
    return InvalidArgumentError(
        f"op: expected one that is defined for elements of type {kind.name}, got {name}"
    )


def start_alike(one: Span, other: Span) -> bool:
    """Return whether two spans share their first element."""
    return one.address == other.address and one.count > 0 < other.count


def check_block(name: str, rank: int, block: Span, other_name: str, other: Span) -> None:
    """Raise InvalidArgumentError unless a block has the type and size of another buffer."""
    require_kind(block, name, other, other_name)
    if block.count != other.count:
        raise InvalidArgumentError(
            f"{name}: expected block {rank} to have {other.count} elements like {other_name}, "
            f"got {block.count}"
        )


def check_tag(tag: int) -> None:
    """Raise InvalidArgumentError unless `tag` fits 64 bits."""
    if not isinstance(tag, int) or not 0 <= tag <= _MAX_TAG:
        raise InvalidArgumentError(f"tag: expected a number of 0..2^64-1, got {tag!r}")
