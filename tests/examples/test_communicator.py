"""The second example: its own assertions hold on one node and on two."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

from launching import launch
from ranks import run_ranks

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_communicator.py"


def test_every_number_is_right_on_two_nodes() -> None:
    done = launch("--nnodes", 2, "--nproc-per-node", 2, EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4 ranks, by node ((0, 1), (2, 3)): every number is right\n"


def be_the_example(rank: int, world_size: int) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return printed.getvalue()


def test_every_number_is_right_on_one_node() -> None:
    printed = run_ranks(be_the_example, 4)
    assert printed == ["4 ranks, by node ((0, 1, 2, 3),): every number is right\n", "", "", ""]
