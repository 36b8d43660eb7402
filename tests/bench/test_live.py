"""The table of a terminal: which columns it has where there is room for few."""

import pytest

from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.output.table import Table

_BOTH = ["hccl", "gloo"]


def _columns(width: int, contenders: list[str]) -> list[str]:
    table = Table(parse([])[0], contenders)
    table.narrow(width)
    (header,) = table.header(first=True)
    assert len(header) < width
    return table.columns


def test_narrow_on_a_wide_terminal_keeps_every_column() -> None:
    assert _columns(200, _BOTH) == Table(parse([])[0], _BOTH).columns


@pytest.mark.parametrize("width", [80, 100])
def test_narrow_keeps_what_a_row_is_read_for(width: int) -> None:
    shown = _columns(width, _BOTH)
    assert {"size", "by", "time us", "busbw GB/s", "ratio", "doubt"} <= set(shown)
    assert "root" not in shown


def test_narrow_leaves_out_more_beside_long_names() -> None:
    long = [*_BOTH, "a_file_of_mine.py:all_reduce_of_mine"]
    assert len(_columns(80, long)) < len(_columns(80, _BOTH))
