"""Exact sums by rational numbers, and numbers that are hard to add up.

given = hard_numbers(random, torch.float32, 5, 300)     # five ranks' tensors
assert_exact(result, given, divisor=5)                  # bit for bit
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch


class Format(NamedTuple):
    """The significant bits of a type, and the exponents of its smallest and its largest step."""

    bits: int
    least: int
    most: int
    integer: torch.dtype


FORMATS = {
    torch.float64: Format(53, -1074, 971, torch.int64),
    torch.float32: Format(24, -149, 104, torch.int32),
    torch.bfloat16: Format(8, -133, 120, torch.int16),
    torch.float16: Format(11, -24, 5, torch.int16),
}
MAGNITUDES = ("usual", "wide", "cancelling", "halves", "tiny", "huge", "any bits")


def rounded(exact: Fraction, dtype: torch.dtype) -> float:
    """Round to nearest even, once."""
    bits, least, most, _ = FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    step = max(exponent - bits + 1, least)
    steps = round(size / Fraction(2) ** step)  # Python rounds halves to even
    overflows = steps * Fraction(2) ** step >= Fraction(2) ** (most + bits)
    found = math.inf if overflows else float(steps * Fraction(2) ** step)
    return found if exact > 0 else -found


def exact_sum(operands: Sequence[float], divisor: int, dtype: torch.dtype) -> float:
    """Return the sum / `divisor`, rounded once; -0 only if all operands are."""
    infinities = {one for one in operands if math.isinf(one)}
    if len(infinities) == 2 or any(map(math.isnan, operands)):
        return math.nan
    if infinities:
        return infinities.pop()
    total = sum(map(Fraction, operands))
    if total:
        return rounded(total / divisor, dtype)
    return -0.0 if all(math.copysign(1, one) < 0 for one in operands) else 0.0


def assert_exact(got: torch.Tensor, given: Sequence[torch.Tensor], divisor: int = 1) -> None:
    """Compare every bit, but for those of NaN."""
    rows = zip(*(one.double().tolist() for one in given), strict=True)
    wanted = [exact_sum(row, divisor, got.dtype) for row in rows]
    expected = torch.tensor(wanted, dtype=torch.float64).to(got.dtype)
    integer = FORMATS[got.dtype].integer
    differs = (got.view(integer) != expected.view(integer)) & ~(got.isnan() & expected.isnan())
    assert not differs.any(), [
        (place, got[place], expected[place], [one[place] for one in given])
        for place in differs.nonzero()[:3]
    ]


def hard_numbers(
    random: np.random.Generator, dtype: torch.dtype, n: int, count: int, magnitude: str
) -> list[torch.Tensor]:
    """Make `n` tensors; a third of the elements of some are zeros, infinities or NaN."""
    bits, least, most, integer = FORMATS[dtype]
    numbers = random.standard_normal((n, count))
    if magnitude == "any bits":
        raw = random.integers(-(2**63), 2**63 - 1, (n, count), np.int64)
        made = list(torch.from_numpy(raw).to(integer).view(dtype))
    else:
        if magnitude == "wide":
            numbers *= 2.0 ** random.integers(-30, 30, (n, count))
        elif magnitude == "cancelling":
            numbers[n - n // 2 :] = -numbers[: n // 2]
            numbers[0] += 2.0 ** -random.integers(20, 60) * random.standard_normal(count)
        elif magnitude == "halves":
            numbers = np.round(numbers * 4) / 4
        elif magnitude == "tiny":
            numbers *= 2.0 ** (least + random.integers(0, 5, (n, count)).astype(float))
        elif magnitude == "huge":
            largest = (2 - 2.0 ** (1 - bits)) * 2.0 ** (most + bits - 1)
            numbers = np.clip(numbers / 2, -1, 1) * largest
        made = list(torch.from_numpy(numbers).to(dtype))
    special = random.choice([0, 2, 5], p=(0.6, 0.2, 0.2))
    chosen = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan][:special], dtype=dtype)
    for one in made if special else ():
        places = torch.from_numpy(random.random(count) < 0.3)
        one[places] = chosen[torch.from_numpy(random.integers(0, special, int(places.sum())))]
    return made
