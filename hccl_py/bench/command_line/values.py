"""Readers of single values, which argparse calls: sizes, numbers, lists of names, rates, paths.

Each raises `argparse.ArgumentTypeError` with what was expected and what came.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hccl_py.algorithms.sizes import read_size

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of the files that plots are written to."""


def parse_size(text: str) -> int:
    """Read a size in bytes: digits and an optional K, M or G, 1024-based.

    Raises:
        argparse.ArgumentTypeError: the text is no such size.
    """
    try:
        return read_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read sizes with commas between them."""
    return tuple(parse_size(part) for part in text.split(","))


def parse_positive(text: str) -> int:
    """Read a whole number of at least 1."""
    return _whole(text, least=1)


def parse_natural(text: str) -> int:
    """Read a whole number of at least 0."""
    return _whole(text, least=0)


def parse_factor(text: str) -> int:
    """Read a whole number of at least 2: with 1 a range would have no end."""
    return _whole(text, least=2)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers of at least 1 with commas between them."""
    return tuple(map(parse_positive, text.split(",")))


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, got {text!r}"
        )
    return int(text)


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return seconds


def parse_rate(text: str) -> float:
    """Read a rate as tc spells it; return Mbit/s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mg])bit", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a rate such as 1gbit or 100mbit, got {text!r}")
    return float(match[1]) * (1000 if match[2] in "gG" else 1)


def parse_path(text: str) -> Path:
    """Read a path, of which links stay: the Python of a virtual environment is one."""
    return Path(text).expanduser().absolute()


def parse_output(text: str) -> Path:
    """Read the path of a file to write: noticed before hours of measuring, not after them."""
    path = Path(text).expanduser()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file to write, got the folder {text}")
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"there is no folder {path.parent}: make it, or name another file"
        )
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} must not be written: name another file")
    return path


def parse_picture(text: str) -> Path:
    """Read the path of a picture to write, for which matplotlib is needed."""
    if Path(text).suffix.lower() not in PICTURES:
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in {', '.join(PICTURES)}, got {text!r}"
        )
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("needs matplotlib: pip install 'hccl-py[bench]'")
    return parse_output(text)


def parse_input(text: str) -> Path:
    """Read the path of a file that exists."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def parser_of(
    known: Mapping[str, str], every: Sequence[str], elsewhere: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Make a parser of names with commas between them.

    Args:
        known: each name that can be given, with what it stands for.
        every: the names that `all` stands for.
        elsewhere: names that belong to another option, with what to give instead.
    """

    def read(text: str) -> tuple[str, ...]:
        names = every if text == "all" else text.split(",")
        for name in names:
            if name not in known:
                expected = ", ".join(("all", *dict.fromkeys(known.values())))
                instead = (elsewhere or {}).get(name)
                raise argparse.ArgumentTypeError(
                    f"expected one or more of {expected}, got {name!r}"
                    + (f"; {instead}" if instead else "")
                )
        return tuple(dict.fromkeys(known[name] for name in names))

    return read
