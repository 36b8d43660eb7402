"""The live table of a terminal: which columns it has where there is room for few."""

from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.output.live import fitting
from hccl_py.bench.collective.output.table import Table

_COLUMNS = Table(parse([])[0], ["hccl", "gloo"]).columns
_CELLS = {name: "0" for name in _COLUMNS} | {"by": "gloo", "size": "67108864", "time us": "123456"}


def test_fitting_wide_terminal_has_every_column() -> None:
    assert fitting(_COLUMNS, [_CELLS], 200) == _COLUMNS


def test_fitting_narrow_terminal_keeps_what_a_row_is_read_for() -> None:
    shown = fitting(_COLUMNS, [_CELLS], 80)
    assert {"size", "by", "time us", "busbw GB/s", "ratio", "doubt"} <= set(shown)
    assert "root" not in shown and shown == [name for name in _COLUMNS if name in shown]
    assert sum(len(name) + 3 for name in shown) < 80


def test_fitting_long_cells_leave_out_more_columns() -> None:
    long = _CELLS | {"by": "a_file_of_mine.py:all_reduce_of_mine"}
    assert len(fitting(_COLUMNS, [_CELLS, long], 80)) < len(fitting(_COLUMNS, [_CELLS], 80))
