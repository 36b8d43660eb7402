"""Checks of the plain arguments of public calls: each raises one line that names the argument."""

import contextlib
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
    """Return the error for an unexpected argument."""
    return InvalidArgumentError(f"{name}: expected {expected}, got {shown(got)}")


def shown(value: object) -> str:
    """Render a value in one line, for an error."""
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # raised by a user's class, or by an int of over 4,300 digits
        text = f"one of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{type(value).__name__} {text[:60]} ..."


def seconds(name: str, value: object, *, above_zero: bool = False) -> float:
    """Return a number of seconds, up to LONGEST_S."""
    number = _real(value)
    if 0 <= number <= LONGEST_S and (number or not above_zero):
        return number
    limits = f"{'above 0' if above_zero else '0'} to {LONGEST_S:.0f}"
    raise wrong(name, f"a number of seconds, {limits}", value)


def whole_number(
    name: str, value: Any, expected: str = "a whole number", within: range | None = None
) -> int:
    """Return a whole number, numpy's included, as an int, checked against a range if given."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError):  # torch: the tensor has no value
        number = operator.index(value)
        if within is None or number in within:
            return number
    raise wrong(name, expected, value)


def whole_numbers(name: str, value: Any, what: str, within: range | None = None) -> tuple[int, ...]:
    """Return an iterable of whole numbers as ints; `what` names them in the error."""
    return tuple(whole_number(name, one, what, within) for one in items(name, value, what))


def measure(name: str, value: object) -> None:
    """Raise InvalidArgumentError unless a number is finite, and 0 or more."""
    if not 0 <= _real(value) < math.inf:
        raise wrong(name, "a number of 0 or more", value)


def _real(value: object) -> float:
    try:
        return float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        return math.inf


def text(name: str, value: object) -> str:
    """Return a string that UTF-8 can encode: no lone surrogates."""
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):
            value.encode()
            return value
    raise wrong(name, "a string of whole characters", value)


def flag(name: str, value: object, expected: str = "True or False") -> bool:
    """Return a bool, numpy's included."""
    if value is True or value is False or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise wrong(name, expected, value)


def path(name: str, value: Any) -> "str | os.PathLike[str]":
    """Return the path of a file or folder."""
    if isinstance(value, str | os.PathLike):
        with contextlib.suppress(ValueError):
            if b"\0" not in os.fsencode(value):
                return value
    raise wrong(name, "a path", value)


def items(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """Return the items of an iterable other than a string; `what` names them in the error."""
    is_text = isinstance(value, str | bytes | bytearray)
    # Arrays without dimensions look iterable but have no items.
    if isinstance(value, Iterable) and not is_text and getattr(value, "ndim", None) != 0:
        return tuple(value)
    raise wrong(name, what, value)
