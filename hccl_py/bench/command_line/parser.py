"""One line for one mistake, in place of the whole usage."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """A parser of argparse that answers a mistake in one line and takes no abbreviations."""

    def __init__(self, **keywords: Any) -> None:
        """Take what argparse takes."""
        super().__init__(**keywords | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and leave with exit code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def read(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """Read the arguments; an unknown option is answered with the one it resembles."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
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
