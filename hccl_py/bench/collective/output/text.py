"""Numbers, sizes and tables as text."""

from collections.abc import Iterable, Sequence


def number(value: float) -> str:
    """Write three significant digits, never an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 0.1 or value == 0:
        return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return f"{value:.3g}" if value >= 1e-4 else f"{value:.6f}"


def size_text(size: int) -> str:
    """Write a size with its 1024-based unit."""
    for unit, factor in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} B"


def markdown_lines(table: Sequence[Sequence[str]]) -> list[str]:
    """Make the lines of a table in Markdown, header first."""
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    return [lines[0], "|" + "--:|" * len(table[0]), *lines[1:]]


def text_lines(table: Sequence[Sequence[str]], gap: str = "  ") -> list[str]:
    """Make the lines of a table, header first; its last column, for notes, is left-aligned."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [padded(cells[:-1], widths, gap) + f"{gap}{cells[-1]}".rstrip() for cells in table]


def lay_out(table: Sequence[Sequence[str]], markdown: bool) -> list[str]:
    """Make the lines of a table, in Markdown or as text."""
    return markdown_lines(table) if markdown else text_lines(table)


def padded(cells: Sequence[str], widths: Iterable[int], gap: str = " ") -> str:
    """Align the cells of a line to the right."""
    return gap.join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False))
