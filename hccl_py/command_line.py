"""A parser with one-line errors, and readers of values, for all commands.

Each reader raises `argparse.ArgumentTypeError` with the expected and the given value.
"""

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from hccl_py.installation import pip_install
from hccl_py.quantities import RATE, read_quantity, read_size

_Value = TypeVar("_Value")
_PICTURES = (".png", ".svg", ".pdf")


class Parser(argparse.ArgumentParser):
    """An argparse parser with one-line errors and without abbreviated options."""

    def __init__(self, **keywords: Any) -> None:
        """Take argparse's keywords."""
        super().__init__(**keywords | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def read(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse the arguments; the error of an unknown option suggests a similar one."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            import difflib  # slow for hccl-launch, of which a thousand may start at once

            names = list(self._options())
            close = difflib.get_close_matches(unknown[0].partition("=")[0], names, 1, 0.5)
            self.error(
                f"unrecognized: {' '.join(unknown)}" + (f"; is it {close[0]}?" if close else "")
            )
        return given

    def _options(self) -> Iterator[str]:
        """Name the options of this parser and of its commands."""
        yield from self._option_string_actions
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    yield from command._option_string_actions


def until_reader_ends(work: Callable[[], int]) -> int:
    """Do the work of a command; return 141 if the reader of its output ended, as `head` does."""
    try:
        code = work()
        sys.stdout.flush()
    except BrokenPipeError:
        with open(os.devnull, "w") as sink:  # else the interpreter reports it at exit
            os.dup2(sink.fileno(), 1)
        return 128 + signal.SIGPIPE
    return code


def columns() -> int:
    """Return the width of the terminal, or that of COLUMNS; 0: the output has no limit."""
    import shutil  # late: the agents of a job start without it

    return shutil.get_terminal_size((0, 0)).columns


def wrapped(line: str) -> str:
    """Break a line of prose at the width of the terminal."""
    width, indent = columns(), "#   " if line.startswith("#") else "  "
    return textwrap.fill(line, width, subsequent_indent=indent) if 20 < width < len(line) else line


def reader(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Have argparse print a ValueError's message instead of its own."""

    def parse(text: str) -> _Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def list_of(parse: Callable[[str], _Value]) -> Callable[[str], tuple[_Value, ...]]:
    """Make a reader of comma-separated values."""
    return lambda text: tuple(map(parse, text.split(",")))


def printable(text: str) -> str:
    """Take a name; bytes that are no UTF-8 are none."""
    if not text.isprintable() or not text:
        raise argparse.ArgumentTypeError(f"expected a name, got {text!r}")
    return text


def whole(least: int, most: int = (1 << 31) - 1) -> Callable[[str], int]:
    """Make a reader of whole numbers within bounds."""

    def parse(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else least - 1
        if not least <= number <= most:
            expected = f"a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return number

    return parse


parse_positive = whole(1)
parse_natural = whole(0)
parse_numbers = list_of(parse_positive)
parse_size = reader(read_size)
parse_sizes = list_of(parse_size)
parse_rate = reader(lambda text: read_quantity(text, RATE) / 1e6)
"""Reads a rate, in Mbit/s."""


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text!r}")
    return seconds


def parse_output(text: str) -> Path:
    """Read the path of a file to write, and check it before the work, not after."""
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
    if Path(text).suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(
            f"expected a name that ends in {', '.join(_PICTURES)}, got {text!r}"
        )
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(f"needs matplotlib: {pip_install('bench')}")
    return parse_output(text)


def parse_input(text: str) -> Path:
    """Read the path of a file that exists."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def names_of(
    known: Iterable[str],
    *,
    aliases: Mapping[str, str] | None = None,
    every: Sequence[str] = (),
    elsewhere: Mapping[str, str] | None = None,
) -> Callable[[str], tuple[str, ...]]:
    """Make a reader of comma-separated names.

    Args:
        known: the names.
        aliases: other spellings, with the names that they stand for.
        every: the names that `all` stands for; default: all known names.
        elsewhere: names that belong to another option, with what to give instead.
    """
    known = tuple(known)
    meanings = {name: name for name in known} | dict(aliases or {})

    def parse(text: str) -> tuple[str, ...]:
        names = (every or known) if text == "all" else text.split(",")
        for name in names:
            if name not in meanings:
                instead = (elsewhere or {}).get(name)
                raise argparse.ArgumentTypeError(
                    f"expected one or more of all, {', '.join(known)}, got {name!r}"
                    + (f"; {instead}" if instead else "")
                )
        return tuple(dict.fromkeys(meanings[name] for name in names))

    return parse
