"""Timeouts are kept to a tenth, whoever sets them, and say who had come and who had not."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from injections import ONE_NODE, TWO_NODES, Layout, write_mark
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import CollectiveTimeoutError, Communicator

START_S = 0.2
"""How long ranks get to come to the same moment."""
ABSENT = 2
COUNT = 30_000

layouts = pytest.mark.parametrize(
    "layout",
    [ONE_NODE, pytest.param(TWO_NODES, marks=pytest.mark.nightly("faults"))],
    ids=lambda one: one.name,
)


OF_WAIT = "Work.wait"
"""What only gives up its own wait; any other timeout ends the call, on all ranks."""
Late = tuple[str, float, float, float, str]
"""One timeout as a rank saw it: what was late, what it was allowed, its begin and end, the text."""


def _undisturbed() -> None:
    """Go before whatever else this machine does, where that is allowed: it is not what is timed."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _env(layout: Layout, folder: Path) -> Callable[[int], dict[str, str]]:
    return lambda rank: {"HCCL_NODE_ID": str(layout.node_of(rank)), "TEST_FOLDER": str(folder)}


def _together(rank: int, step: str) -> None:
    """Return on all ranks at the same moment."""
    mark = Path(os.environ["TEST_FOLDER"], step)
    if rank == 0:
        write_mark(mark, str(time.monotonic() + START_S))
    wait_until(mark.exists, "rank 0 names the moment", 60)
    time.sleep(max(float(mark.read_text()) - time.monotonic(), 0))


def _timed(what: str, timeout_s: float, call: Callable[[], object]) -> Late:
    began_s = time.monotonic()
    with pytest.raises(
        (CollectiveTimeoutError, dist.DistBackendError), match="(?i)timed out"
    ) as told:
        call()
    return what, timeout_s, began_s, time.monotonic(), str(told.value)


def _wait_for_others(rank: int, world_size: int, step: str) -> None:
    """Have the absent rank do something else until all others have raised."""
    folder = Path(os.environ["TEST_FOLDER"])
    if rank != ABSENT:
        write_mark(folder / f"{step}-{rank}")
        return
    others = [folder / f"{step}-{one}" for one in range(world_size) if one != rank]
    wait_until(lambda: all(other.exists() for other in others), "the others raise", 60)


def one_does_not_come(rank: int, world_size: int) -> list[Late]:
    _undisturbed()
    seen = []
    data = np.ones(COUNT, np.float32)
    calls: dict[str, Callable[[Communicator], Callable[[], object]]] = {
        "default": lambda comm: lambda: comm.all_reduce(data),
        "per call": lambda comm: lambda: comm.all_reduce(data, timeout_s=1.0),
    }
    for what, make in calls.items():
        comm = Communicator(name=what.replace(" ", "-"))
        comm.barrier()
        if what == "default":
            comm.timeout_s = 0.5
        _together(rank, what)
        if rank != ABSENT:
            seen.append(_timed(what, 0.5 if what == "default" else 1.0, make(comm)))
        _wait_for_others(rank, world_size, what)
        comm.close()
    return seen


def one_does_not_wait(rank: int, world_size: int) -> list[Late]:
    """Work.wait gives up; the call itself goes on and ends well."""
    _undisturbed()
    comm = Communicator()
    data = np.ones(COUNT, np.float32)
    comm.barrier()
    _together(rank, "wait")
    seen = []
    if rank != ABSENT:
        work = comm.nonblocking.all_reduce(data)
        seen = [_timed(OF_WAIT, limit, lambda at=limit: work.wait(at)) for limit in (0.5, 1.0)]
    _wait_for_others(rank, world_size, "wait")
    if rank == ABSENT:
        work = comm.nonblocking.all_reduce(data)
    work.wait()
    assert data.tolist() == [world_size] * COUNT
    comm.close()
    return seen


def check_times(stories: list[list[Late]], layout: Layout) -> None:
    """The time of a call runs from the first that calls and is up for all; a wait's is its own."""
    assert stories[ABSENT] == []
    others = [story for story in stories if story]
    assert len(others) == layout.world_size - 1
    for told in zip(*others, strict=True):
        first_s = min(began_s for _, _, began_s, _, _ in told)
        for what, timeout_s, began_s, ended_s, text in told:
            took_s = ended_s - (began_s if what == OF_WAIT else first_s)
            assert abs(took_s - timeout_s) <= 0.1 * timeout_s, (what, took_s, text)


def check_texts(stories: list[list[Late]], layout: Layout) -> None:
    """All ranks tell the same: who has arrived, who not and why, and how far the slowest got."""
    others = [rank for rank in range(layout.world_size) if rank != ABSENT]
    names = "0, 1, 3" if layout.world_size == 4 else "0, 1, 3-7"
    for told in zip(*(stories[rank] for rank in others), strict=True):
        (text,) = {text for *_, text in told}
        assert re.search(rf"rank {ABSENT} \(.*\), which is computing, has not arrived", text), text
        assert f"ranks {names} have arrived" in text, text
        position = rf"rank \d is .*, \d+ of {4 * COUNT} bytes moved"
        assert re.search(position, text), text


@layouts
def test_timeout_of_group_and_call_is_kept(tmp_path: Path, layout: Layout) -> None:
    stories = run_ranks(one_does_not_come, layout.world_size, env=_env(layout, tmp_path))
    check_times(stories, layout)
    check_texts(stories, layout)


@layouts
def test_timeout_of_wait_is_kept_and_harms_nobody(tmp_path: Path, layout: Layout) -> None:
    stories = run_ranks(one_does_not_wait, layout.world_size, env=_env(layout, tmp_path))
    check_times(stories, layout)
