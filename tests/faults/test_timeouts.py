"""Timeouts are kept to a tenth, whoever sets them, and say who had come and who had not."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist
from injections import ONE_NODE, TWO_NODES, Layout, write_mark
from quiet_clock import Moment
from rank_processes import wait_for_every_report
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import CollectiveTimeoutError, Communicator

ABSENT = 2
COUNT = 30_000

layouts = pytest.mark.parametrize(
    "layout",
    [ONE_NODE, pytest.param(TWO_NODES, marks=pytest.mark.nightly("faults"))],
    ids=lambda one: one.name,
)


OF_WAIT = "Work.wait"
"""What only gives up its own wait; any other timeout ends the call, on all ranks."""


Late = tuple[str, float, Moment, Moment, str]
"""One timeout as a rank saw it: what was late, what it was allowed, its begin and end, the text."""


def _env(layout: Layout, folder: Path) -> Callable[[int], dict[str, str]]:
    return lambda rank: {"HCCL_NODE_ID": str(layout.node_of(rank)), "TEST_FOLDER": str(folder)}


def _mark(rank: int, step: str) -> None:
    write_mark(Path(os.environ["TEST_FOLDER"], f"{step}-{rank}"))


def _wait_for_others(rank: int, world_size: int, step: str) -> None:
    """Wait until all other ranks but the absent one have left their marks."""
    folder = Path(os.environ["TEST_FOLDER"])
    others = [folder / f"{step}-{one}" for one in range(world_size) if one not in (rank, ABSENT)]
    wait_until(lambda: all(other.exists() for other in others), f"the others: {step}")


def _timed(what: str, timeout_s: float, call: Callable[[], object]) -> Late:
    began = Moment.now()
    with pytest.raises(
        (CollectiveTimeoutError, dist.DistBackendError), match="(?i)timed out"
    ) as told:
        call()
    return what, timeout_s, began, Moment.now(), str(told.value)


def one_does_not_come(rank: int, world_size: int) -> list[Late]:
    """Rank 0 calls last, and its time is up first: the text names the others as arrived."""
    wait_for_every_report()
    seen = []
    data = np.ones(COUNT, np.float32)
    calls: dict[str, Callable[[Communicator], object]] = {
        "default": lambda comm: comm.all_reduce(data),
        "per call": lambda comm: comm.all_reduce(data, timeout_s=1.0),
    }
    for what, call in calls.items():
        limit_s = 0.5 if what == "default" else 1.0
        comm = Communicator(name=what.replace(" ", "-"))
        comm.barrier()
        if rank == 0:
            _wait_for_others(rank, world_size, f"{what} called")
            if what == "default":
                comm.timeout_s = limit_s
            seen.append(_timed(what, limit_s, lambda comm=comm, call=call: call(comm)))  # type: ignore[misc]
        elif rank != ABSENT:
            work = comm.nonblocking.all_reduce(data)
            _mark(rank, f"{what} called")
            seen.append(_timed(what, limit_s, work.wait))
        _mark(rank, f"{what} raised")
        if rank == ABSENT:  # it does something else meanwhile
            _wait_for_others(rank, world_size, f"{what} raised")
        comm.close()
    return seen


def one_does_not_wait(rank: int, world_size: int) -> list[Late]:
    """Work.wait gives up; the call itself continues and ends well."""
    wait_for_every_report()
    comm = Communicator()
    data = np.ones(COUNT, np.float32)
    comm.barrier()
    seen = []
    if rank != ABSENT:
        work = comm.nonblocking.all_reduce(data)
        _mark(rank, "called")
        _wait_for_others(rank, world_size, "called")
        seen = [_timed(OF_WAIT, limit, lambda at=limit: work.wait(at)) for limit in (0.5, 1.0)]
        _mark(rank, "waited")
    else:
        _wait_for_others(rank, world_size, "waited")
        work = comm.nonblocking.all_reduce(data)
    work.wait()
    assert data.tolist() == [world_size] * COUNT
    comm.close()
    return seen


def check_times(stories: list[list[Late]], layout: Layout) -> None:
    """The time of a call is up for all; a wait's is its own."""
    assert stories[ABSENT] == []
    others = [story for story in stories if story]
    assert len(others) == layout.world_size - 1
    for told in zip(*others, strict=True):
        last_to_call = told[0][2]
        for what, timeout_s, own, ended, text in told:
            began = own if what == OF_WAIT else last_to_call
            assert ended.s - began.s >= 0.9 * timeout_s, text
            assert ended - began <= 1.1 * timeout_s, text


def check_texts(stories: list[list[Late]], layout: Layout) -> None:
    """All ranks tell the same: who has arrived, who not and why, and how far the slowest got."""
    others = [rank for rank in range(layout.world_size) if rank != ABSENT]
    for told in zip(*(stories[rank] for rank in others), strict=True):
        (text,) = {text for *_, text in told}
        assert re.search(
            rf"rank {ABSENT} \(.*\), which is in no collective, has not arrived", text
        ), text
        assert f"ranks {_names(layout)} have arrived" in text, text
        position = rf"rank \d is .*, \d+ of {4 * COUNT} bytes moved"
        assert re.search(position, text), text


def _names(layout: Layout) -> str:
    return "0, 1, 3" if layout.world_size == 4 else "0, 1, 3-7"


@layouts
def test_timeout_of_group_and_call_is_kept(tmp_path: Path, layout: Layout) -> None:
    stories = run_ranks(one_does_not_come, layout.world_size, env=_env(layout, tmp_path))
    check_times(stories, layout)
    check_texts(stories, layout)


@layouts
def test_timeout_of_wait_is_kept_and_harms_nobody(tmp_path: Path, layout: Layout) -> None:
    stories = run_ranks(one_does_not_wait, layout.world_size, env=_env(layout, tmp_path))
    check_times(stories, layout)
    expected = (
        rf"of waiting for its Work: rank {ABSENT} \(host .*\), which is .*, has not arrived; "
        rf"ranks {_names(layout)} have arrived; .*; the call itself continues, its own timeout is"
    )
    for *_, text in sum(stories, []):
        assert re.search(expected, text), text
