"""Checks of the plain arguments of public calls: each raises one line that names the argument."""

import math
import numbers
import operator
import os
from collections.abc import Iterable
from typing import Any

from hccl_py.transport.errors import InvalidArgumentError

LONGEST_S = 1e8
"""Three years: no deadline is later, so that no clock overflows."""


def wrong(name: str, expected: str, got: object) -> InvalidArgumentError:
    """Return the error for an argument that is not what was expected."""
    return InvalidArgumentError(f"{name}: expected {expected}, got {shown(got)}")


def shown(value: object) -> str:
    """Return a value as an error shows it: in one line."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]} ..."


def seconds(name: str, value: object, *, above_zero: bool = False) -> float:
    """Return a number of seconds, up to LONGEST_S."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if 0 <= number <= LONGEST_S and (number or not above_zero):
        return number
    limits = f"{'above 0' if above_zero else '0'} to {LONGEST_S:.0f}"
    raise wrong(name, f"a number of seconds, {limits}", value)


def whole_number(name: str, value: Any, expected: str = "a whole number") -> int:
    """Return Python's int of a whole number, numpy's too."""
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # of torch: no number is there
        raise wrong(name, expected, value) from None


def text(name: str, value: object) -> str:
    """Return a string."""
    if isinstance(value, str):
        return value
    raise wrong(name, "a string", value)


def flag(name: str, value: object) -> bool:
    """Return a truth value, numpy's too."""
    if value is True or value is False or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong(name, "True or False", value)


def path(name: str, value: Any) -> "str | os.PathLike[str]":
    """Return what names a file or folder."""
    if isinstance(value, str | os.PathLike):
        return value
    raise wrong(name, "a path", value)


def items(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """Return the items of an iterable that is no text; `what` they are to be."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | bytearray):
        return tuple(value)
    raise wrong(name, what, value)
