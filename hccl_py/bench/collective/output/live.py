"""The table on a terminal: it grows row by row, with what is being measured right now below it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.output.table import Table
from hccl_py.bench.collective.results import Row

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_DRAW_EVERY_S = 0.2
_GAP = 3
"""Characters that rich puts between two columns."""

_LEFT_OUT_FIRST = (
    *("root", "count", "place", "type", "op", "p99", "ratio p10-p90", "p50", "ranks"),
    *("algbw GB/s", "limit", "ratio", "wrong"),
)
"""Columns that a narrow terminal does without."""


class Lines:
    """Prints a line as soon as there is one; for files, pipes, CSV and Markdown."""

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
    """The same on a terminal, with rich: doubtful rows are yellow, wrong ones and losses red."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # Drawn between requests only, when the ranks are idle: a thread would take them a core.
        self._live = Live(console=Console(highlight=False), auto_refresh=False)
        self._drawn_s = 0.0
        self._table: Table | None = None
        self._rows: list[tuple[dict[str, str], str]] = []
        self._status = ""

    def __enter__(self) -> Screen:
        """Take over the terminal's last lines."""
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last table where it is."""
        self.status("")
        self._live.__exit__(None, None, None)

    def status(self, what: str) -> None:
        """Show what goes on."""
        self._status = what
        if not what or time.monotonic() - self._drawn_s > _DRAW_EVERY_S:
            self._show()

    def header(self, table: Table, first: bool) -> None:
        """Leave the last table where it is and begin another."""
        if self._table is not None:
            self._live.console.print(self._drawn(self._table))
        self._table, self._rows = table, []

    def row(self, table: Table, row: Row) -> None:
        """Add a row; reasons to doubt it stand in the last column."""
        for result in row.results:
            cells = table.cells(row, result)
            style = "red" if result.wrong else "yellow" if row.doubts else ""
            self._rows.append((cells, style))
        self.lines([f"doubtful at {row.size} B: {doubt}" for doubt in row.doubts])
        self._show()

    def lines(self, lines: Sequence[str]) -> None:
        """Print above the table."""
        for line in lines:
            self._live.console.print(line, markup=False, style="dim", soft_wrap=True)

    def _show(self) -> None:
        from rich.console import Group
        from rich.spinner import Spinner

        below = [Spinner("dots", self._status)] if self._status else []
        shown = [self._drawn(self._table)] if self._table is not None else []
        self._live.update(Group(*shown, *below), refresh=True)
        self._drawn_s = time.monotonic()

    def _drawn(self, table: Table) -> RichTable:
        """Make the table of the rows so far, with as many columns as the terminal is wide."""
        from rich import box
        from rich.table import Table as RichTable

        width = self._live.console.width
        names = fitting(table.columns, [cells for cells, _ in self._rows], width)
        left_out = [name for name in table.columns if name not in names]
        drawn = RichTable(box=box.SIMPLE_HEAD, title=table.title, title_justify="left")
        if left_out:
            drawn.caption = f"not shown on {width} columns: {', '.join(left_out)}"
            drawn.caption_justify = "left"
        for name in names:
            drawn.add_column(name, justify="right", no_wrap=True)
        for cells, style in self._rows:
            drawn.add_row(*(_coloured(name, cells[name]) for name in names), style=style)
        return drawn


def _coloured(name: str, cell: str) -> str:
    """A contender that is faster than the first has a red ratio."""
    is_loss = name == "ratio" and cell and float(cell.rstrip("x")) < 1
    return f"[red]{cell}[/red]" if is_loss else cell


def fitting(columns: Sequence[str], rows: Sequence[dict[str, str]], width: int) -> list[str]:
    """Return the columns that fit into a terminal: those that say least are left out first."""
    needed = {name: _GAP + max(len(name), *(len(row[name]) for row in rows), 0) for name in columns}
    for name in _LEFT_OUT_FIRST:
        if sum(needed.values()) < width:
            break
        needed.pop(name, None)
    return list(needed)


def choose(options: Options) -> Lines:
    """Return a live table where stdout is a terminal and rich is there, else lines."""
    plain = options.csv or options.markdown or not sys.stdout.isatty()
    return Lines() if plain or find_spec("rich") is None else Screen()
