"""A sum of every rank's elements times its factor, like NCCL's pre-mul sum."""

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from hccl_py.memory.arguments import check_op, wrong_op
from hccl_py.memory.element_types import Span
from hccl_py.memory.exporters import HeldAddress
from hccl_py.transport import _core
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import InvalidArgumentError


@dataclass(frozen=True)
class ScaledSum:
    """A reduce op, made by `premul_sum`."""

    factor: float

    def __repr__(self) -> str:
        return f"premul_sum({self.factor!r})"


def scaled(op: object, elements: Span) -> Span:
    """Return the elements times the factor of a ScaledSum, in new memory."""
    address, count, kind = elements
    if not isinstance(op, ScaledSum):
        check_op(op, kind)
        raise wrong_op(op)
    holder = np.empty(elements.num_bytes, np.uint8)
    made = HeldAddress(holder.ctypes.data, holder)
    if kind.part_type is None or not _core.multiply(
        kind.part_type, made, address, count * kind.parts, op.factor
    ):
        raise InvalidArgumentError(
            f"op: expected one that is defined for elements of type {kind.name}, got {op}, "
            "which multiplies floating-point numbers"
        )
    return Span(made, count, kind)


def premul_sum(factor: Any) -> ScaledSum:
    """Make a reduce op: the sum of each rank's elements times its factor.

    `all_reduce`, `reduce` and `reduce_scatter` take it for floating-point and complex elements.
    Factors may differ between ranks. Products are rounded to the elements' type before the sum.

    Args:
        factor: a real number.

    Raises:
        InvalidArgumentError: it is not a real number.
    """
    try:
        if isinstance(factor, numbers.Real):
            return ScaledSum(float(factor))
    except OverflowError:
        pass
    raise wrong("factor", "a real number", factor)
