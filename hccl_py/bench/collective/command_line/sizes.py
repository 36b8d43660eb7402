"""The sizes that a range of `-b -e -f -i`, a --size_range or --sizes asks for."""

from __future__ import annotations

import argparse

from hccl_py.command_line import parse_size

_DEFAULT_RANGE = (parse_size("4"), parse_size("64M"))
_DEFAULT_FACTOR = 16
_VALIDATE_SIZE = parse_size("1M")
MOST_SIZES = 1000
_TUNED_SIZES = (8, 256, *(1 << exponent for exponent in range(10, 25, 2)))


def sizes_of(given: argparse.Namespace) -> tuple[int, ...]:
    """The sizes asked for, smallest first where a range was given, no more than MOST_SIZES + 1."""
    if given.sizes:
        return tuple(given.sizes)
    if not (given.minbytes or given.maxbytes or given.size_range):
        if given.validate:
            return (_VALIDATE_SIZE,)
        if given.tune_path and not (given.stepfactor or given.stepbytes):
            return _TUNED_SIZES
    factor = given.stepfactor or _DEFAULT_FACTOR
    least, most = _DEFAULT_RANGE
    if given.size_range:
        least, most = given.size_range
        factor = 2 ** (given.size_range_inc or 1)
    least = given.minbytes or least
    most = given.maxbytes or (max(least, most) if given.minbytes else most)
    sizes: list[int] = []
    while least <= most and len(sizes) <= MOST_SIZES:
        sizes.append(least)
        least = least + given.stepbytes if given.stepbytes else least * factor
    return tuple(sizes)
