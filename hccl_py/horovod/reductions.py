"""The arithmetic of calls that reduce: Horovod's ops, factors and defaults."""

import sys
import warnings
from dataclasses import dataclass
from enum import IntEnum

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp


class HorovodOp(IntEnum):
    """Horovod's reductions, with its numbers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average, Sum, Adasum, Min, Max, Product = HorovodOp

_NATIVE = {
    Average: ReduceOp.AVG,
    Sum: ReduceOp.SUM,
    Min: ReduceOp.MIN,
    Max: ReduceOp.MAX,
    Product: ReduceOp.PRODUCT,
}


@dataclass(frozen=True)
class Reduction:
    """Multiply by `prescale_factor`, reduce over ranks, multiply by `postscale_factor`."""

    op: HorovodOp
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0

    @property
    def native(self) -> int:
        """The communicator's op as a plain number, with which calls are fastest."""
        return int(_NATIVE[self.op])


def reduction(
    op: int | None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Reduction:
    """Check the arguments of a call; `average` is Horovod's older name for `op`.

    Raises:
        ValueError: both are given, or there is no such op.
        NotImplementedError: the op is Adasum.
    """
    if average is not None:
        if op is not None:
            raise InvalidArgumentError(
                "The op parameter supersedes average. Please provide only one of them."
            )
        text = "Parameter `average` has been replaced with `op`."
        warnings.warn(text, DeprecationWarning, stacklevel=_level_of_program())
        op = Average if average else Sum
    try:
        chosen = HorovodOp(Average if op is None else op)
    except ValueError:
        names = "Average, Sum, Min, Max and Product"
        raise InvalidArgumentError(f"op: expected one of {names}, got {op!r}") from None
    if chosen is Adasum:
        raise NotImplementedError(
            "op=Adasum: hccl-py has no Adasum, whose sum depends on the dot products of all pairs "
            "of ranks; use op=Average"
        )
    return Reduction(chosen, prescale_factor, postscale_factor)


def _level_of_program() -> int:
    """Return the stacklevel with which a warning of the caller names the program's line."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("hccl_py."):
        frame, level = frame.f_back, level + 1
    return level


def gradient_reduction(op: int, gradient_predivide_factor: float) -> Reduction:
    """Check the arguments of an optimizer or tape, which may divide before the sum.

    Raises:
        ValueError: there is a factor without Average, or there is no such op.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    return reduction(op, None, 1 / gradient_predivide_factor, gradient_predivide_factor)
