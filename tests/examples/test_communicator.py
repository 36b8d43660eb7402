"""The second example: its own assertions hold on one node and on two."""

import contextlib
import io
import runpy
from pathlib import Path

import pytest
from ranks import run_ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_communicator.py"


def be_the_example(rank: int, world_size: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize(
    ("ranks_of_a_node", "nodes"), [(4, "((0, 1, 2, 3),)"), (2, "((0, 1), (2, 3))")]
)
def test_every_number_is_right(ranks_of_a_node: int, nodes: str) -> None:
    printed = run_ranks(
        be_the_example, 4, env=lambda rank: {"HCCL_NODE_ID": str(rank // ranks_of_a_node)}
    )
    assert printed == [f"4 ranks, by node {nodes}: every number is right\n", "", "", ""]
