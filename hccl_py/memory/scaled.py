"""A sum to which every rank gives its elements times a factor of its own, as NCCL's pre-mul sum."""

import numbers
from typing import Any

from hccl_py.memory.buffers import Kind, Span
from hccl_py.memory.exporters import Scratch
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError


class ScaledSum:
    """A reduce op, made by `premul_sum`.

    Attributes:
        factor: this rank's.
    """

    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        """Keep the factor."""
        self.factor = factor

    def __repr__(self) -> str:
        """Show how it was made."""
        return f"premul_sum({self.factor!r})"

    def applied(self, elements: Span) -> Scratch:
        """Return the elements times the factor, in memory of their own.

        Raises:
            InvalidArgumentError: they are no floating-point numbers.
        """
        kind: Kind = elements.kind
        made = Scratch(elements.count, kind.name, kind.item_bytes)
        parts = elements.count * kind.parts
        if kind.part_type < 0 or not _core.multiply(
            kind.part_type, made.memory.address, elements.address, parts, self.factor
        ):
            raise InvalidArgumentError(
                f"op: expected one that is defined for elements of type {kind.name}, got {self}, "
                "which multiplies floating-point numbers"
            )
        return made


def premul_sum(factor: Any) -> ScaledSum:
    """Make a reduce op: the sum of what each rank gives times its factor.

    `all_reduce`, `reduce` and `reduce_scatter` take it for floating-point and complex elements.
    Factors may differ between ranks. Products are rounded to the elements' type before the sum.

    Args:
        factor: a real number.

    Raises:
        InvalidArgumentError: it is none.
    """
    if not isinstance(factor, numbers.Real):
        raise InvalidArgumentError(f"factor: expected a real number, got {factor!r}")
    return ScaledSum(float(factor))
