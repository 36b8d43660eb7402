"""Ops read back from their text."""

from __future__ import annotations

import pytest

from hccl_py.algorithms.table import ALGORITHMS, plans_for
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.parse import parse_op

NODES = ((0, 1), (2, 3, 4))


@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_every_op_of_the_table_is_read_as_it_was(collective: str, name: str) -> None:
    root = 1 if COLLECTIVES[collective].rooted else None
    plans = plans_for(collective, name, NODES, root)
    ops = [op for plan in plans for op in plan.ops]
    if ALGORITHMS[collective, name].compressible:
        ops += [op for plan in plans for op in compress_scale_out(plan, NODES).ops]
    assert ops and [parse_op(str(op)) for op in ops] == ops


@pytest.mark.parametrize(
    "text",
    [
        "",
        "send data[0]",
        "send data[0] to ",
        "send data[-1] to 1",
        "send data[0] from 1",
        "recv data to 1",
        "recv_reduce date[0] from 1",
        "copy data[0] to 1",
        "send data[0] to 1 ",
        "send data[0] to 1\n",
        "send data[٣] to 1",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected `send CHUNK to RANKS`.*; got "):
        parse_op(text)
