"""The second example: its own assertions hold on one node and on two."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import launch

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_communicator.py"


@pytest.mark.parametrize(("nodes", "by_node"), [(1, "((0, 1, 2, 3),)"), (2, "((0, 1), (2, 3))")])
def test_every_number_is_right(nodes: int, by_node: str) -> None:
    done = launch("--nnodes", nodes, "--nproc-per-node", 4 // nodes, EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"4 ranks, by node {by_node}: every number is right\n"
