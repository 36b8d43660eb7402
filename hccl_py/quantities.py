"""Parses sizes, rates and times in their usual notation: 64K, 25 Gbit/s, 2 ms."""

import re
from collections.abc import Mapping
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of quantity.

    Attributes:
        name: with its article and examples, for errors.
        units: factor of each unit; names in lower case.
    """

    name: str
    units: Mapping[str, float]


SIZE = Kind(
    "a size such as 4, 64K or 1M",
    {"": 1, "b": 1}
    | {
        f"{letter}{end}": 1 << 10 * power
        for power, letter in enumerate("kmg", 1)
        for end in ("", "b", "ib")
    },
)
"""In bytes; K, KB and KiB are all 1024 bytes."""

RATE = Kind(
    "a rate such as 1gbit or 100 Mbit/s",
    {
        f"{letter}bit{end}": 1e3**power
        for power, letter in enumerate("kmgt", 1)
        for end in ("", "/s")
    },
)
"""In bits per second."""

TIME = Kind("a time such as 50us or 2 ms", {"us": 1e-6, "ms": 1e-3, "s": 1.0})
"""In seconds."""


def read_quantity(text: object, kind: Kind, bounds: tuple[str, str] | None = None) -> float:
    """Read a number and its unit, in upper or lower case.

    Args:
        text: a str; anything else is an error.
        kind: SIZE, RATE or TIME.
        bounds: the smallest and the largest allowed value; None: any above 0.

    Raises:
        ValueError: the text is no such quantity, or is out of bounds.
    """
    value = _value(text, kind)
    if value is None or (bounds is None and value <= 0):
        raise ValueError(f"expected {kind.name}, got {text!r}")
    if bounds is not None:
        least, most = (_value(bound, kind) or 0.0 for bound in bounds)
        if not least <= value <= most:
            raise ValueError(f"expected {bounds[0]} to {bounds[1]}, got {text!r}")
    return value


_ADDRESSES = 1 << 47  # of a process, in bytes


def read_size(text: object) -> int:
    """Read a whole number of bytes of at least 1.

    Raises:
        ValueError: the text is no such size.
    """
    num_bytes = read_quantity(text, SIZE)
    if not num_bytes.is_integer() or num_bytes >= _ADDRESSES:
        raise ValueError(f"expected {SIZE.name}, got {text!r}")
    return int(num_bytes)


def busbw_factor(collective: str, n: int) -> float:
    """Return busbw / algbw of a call of hccl-bench among n ranks; without data it is 0."""
    if collective in ("broadcast", "reduce", "send_recv", "ping_pong"):
        return 1.0
    if collective == "barrier":
        return 0.0
    return (2 if collective == "all_reduce" else 1) * (n - 1) / n


def _value(text: object, kind: Kind) -> float | None:
    words = text.strip().lower() if isinstance(text, str) else ""
    found = re.fullmatch(r"(-?\d+(?:\.\d+)?)\s*([a-z/]*)", words, re.ASCII)
    if found is None or found[2] not in kind.units:
        return None
    return float(found[1]) * kind.units[found[2]]
