"""The table line by line; on a terminal a status line below it shows what is being measured."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.table import Table
from hccl_py.bench.collective.results import Row

_DRAW_EVERY_S = 0.2


class Screen:
    """Prints lines; on a terminal with rich, columns that fit and wrong or doubtful rows in color.

    A context manager: leaving it removes the status line.
    """

    def __init__(self, options: Options) -> None:
        self._drawn_s = 0.0
        self._live: Any = None
        plain = options.csv or options.markdown or not sys.stdout.isatty()
        if not plain and find_spec("rich"):
            from rich.console import Console
            from rich.live import Live

            # Drawn only between requests, while ranks are idle: a thread would need a core.
            self._live = Live(console=Console(highlight=False), auto_refresh=False)

    def __enter__(self) -> Screen:
        """Start the status line."""
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the status line."""
        if self._live:
            self._live.update("", refresh=True)
            self._live.__exit__(None, None, None)

    def status(self, what: str) -> None:
        """Show what is being measured, on a terminal."""
        if self._live and time.monotonic() - self._drawn_s > _DRAW_EVERY_S:
            self._live.update(what, refresh=True)
            self._drawn_s = time.monotonic()

    def header(self, table: Table, first: bool) -> None:
        """Begin a table."""
        if self._live:
            table.narrow(shutil.get_terminal_size().columns)
        self.lines(table.header(first))

    def row(self, table: Table, row: Row) -> None:
        """Add a row."""
        is_wrong = any(result.wrong for result in row.results)
        self.lines(table.row(row), "red" if is_wrong else "yellow" if row.doubts else "")

    def lines(self, lines: Sequence[str], color: str = "") -> None:
        """Print at once: a row must not wait for the next one when stdout is a file."""
        for line in lines:
            if self._live:
                self._live.console.print(line, markup=False, style=color, soft_wrap=True)
            else:
                print(line, flush=True)
