"""The table line by line, and on a terminal below it what is being measured right now."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.table import Table
from hccl_py.bench.collective.results import Row

_DRAW_EVERY_S = 0.2


class Lines:
    """Prints a line as soon as there is one."""

    def __enter__(self) -> Lines:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""

    def status(self, what: str) -> None:
        """Say nothing: a line is only printed for a result."""

    def header(self, table: Table, first: bool) -> None:
        """Begin a table."""
        self.lines(table.header(first))

    def row(self, table: Table, row: Row) -> None:
        """Add a row."""
        self.lines(table.row(row))

    def lines(self, lines: Sequence[str]) -> None:
        """Print at once: a row must not wait for the next one when stdout is a file."""
        for line in lines:
            print(line, flush=True)


class Screen(Lines):
    """The same on a terminal: columns that fit; wrong rows are red, doubtful ones yellow."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Drawn between requests only, when the ranks are idle: a thread would take them a core.
        self._live = Live(console=Console(highlight=False), auto_refresh=False)
        self._drawn_s = 0.0

    def __enter__(self) -> Screen:
        """Take over the terminal's last line."""
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the table where it is."""
        self._live.update("", refresh=True)
        self._live.__exit__(None, None, None)

    def status(self, what: str) -> None:
        """Show what goes on."""
        if time.monotonic() - self._drawn_s > _DRAW_EVERY_S:
            self._live.update(what, refresh=True)
            self._drawn_s = time.monotonic()

    def header(self, table: Table, first: bool) -> None:
        """Begin a table of the columns that fit."""
        table.narrow(shutil.get_terminal_size().columns)
        super().header(table, first)

    def row(self, table: Table, row: Row) -> None:
        """Add a row in its color."""
        is_wrong = any(result.wrong for result in row.results)
        self._print(table.row(row), "red" if is_wrong else "yellow" if row.doubts else "")

    def lines(self, lines: Sequence[str]) -> None:
        """Print above what goes on."""
        self._print(lines, "")

    def _print(self, lines: Sequence[str], style: str) -> None:
        for line in lines:
            self._live.console.print(line, markup=False, style=style, soft_wrap=True)


def choose(options: Options) -> Lines:
    """Return a screen where stdout is a terminal and rich is there, else lines."""
    plain = options.csv or options.markdown or not sys.stdout.isatty()
    return Lines() if plain or find_spec("rich") is None else Screen()
