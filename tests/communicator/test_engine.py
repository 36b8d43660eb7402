"""How many cores the ranks of a host have between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hccl_py.engine import _cores_of
from hccl_py.transport.network.identity import Identity


@pytest.fixture
def first_core() -> Iterator[int]:
    """Bind this thread to its first core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield min(before)
    os.sched_setaffinity(0, before)


def test_cores_of_ranks_that_are_bound_to_one_each_add_up(first_core: int) -> None:
    mine = Identity.of_this_process()
    assert int(mine.cores, 16) == 1 << first_core
    others = [replace(mine, cores=f"{1 << core:x}") for core in (70, 71, 71)]
    assert _cores_of([mine, *others]) == 3
    assert _cores_of([mine, mine]) == 1
