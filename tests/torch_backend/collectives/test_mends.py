"""Where torch asks for a backend by its name, or does not expect a group in Python."""

import re
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from features import feature
from quiet_clock import Moment
from ranks import run_ranks
from torch.distributed import distributed_c10d as c10d

from hccl_py.transport.errors import InvalidArgumentError


def sum_of_ones(group: Any = None) -> int:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return int(tensor[2])


def missing_ranks(group: Any, wait_all_ranks: bool) -> str:
    """Let rank 0 alone come, and tell which ranks the error names."""
    named = ""
    if dist.get_rank() == 0:
        try:
            dist.monitored_barrier(group, timedelta(seconds=0.5), wait_all_ranks=wait_all_ranks)
        except RuntimeError as error:
            found = re.search(r"[Rr]ank(?:s|\(s\))? ([\d, ]*\d) (?:failed|did not)", str(error))
            named = found[1] if found else str(error)
    dist.barrier()  # of the default group: this one is of no use any more on some backends
    return named


@feature(
    "Groups",
    "monitored_barrier names the missing ranks",
    covers=("monitored_barrier",),
    world_size=3,
    note="also as the group's own method, which a name imported before the first group needs",
)
def test_monitored_barrier(rank: int, world_size: int) -> list[Any]:
    """All come; then rank 0 alone, which names the first that is missing, or all of them."""
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    groups = [dist.new_group() for _ in range(2)]
    dist.monitored_barrier(groups[0])
    found = [sum_of_ones()]
    return [*found, missing_ranks(groups[0], False), missing_ranks(groups[1], True)]


@feature("Groups", "a group's timeout is changed", covers=("set_timeout",))
def test_set_timeout(rank: int, world_size: int) -> list[float]:
    """By torch's function, which has another name in older versions."""
    set_timeout = getattr(dist, "set_timeout", c10d._set_pg_timeout)
    group = dist.new_group()
    set_timeout(timedelta(seconds=7))
    set_timeout(timedelta(seconds=8), group)
    backends = [each._get_backend(torch.device("cpu")) for each in (dist.group.WORLD, group)]
    return [backend.options._timeout.total_seconds() for backend in backends]


@feature(
    "Groups",
    "split_group",
    covers=("split_group",),
    world_size=4,
    note="a part is opened as `new_group` opens one, by its members only",
    alone=lambda n: [
        [[0, 2], 4.0, 0, 2.0],
        [[3, 1], 8.0, 1, 2.0],
        [[0, 2], 4.0, 1, 2.0],
        [[3, 1], 8.0, 0, 2.0],
    ],
)
def test_split_group(rank: int, world_size: int) -> list[Any]:
    """Two parts, one in an order of its own; then a part of a part."""
    part = dist.split_group(split_ranks=[[0, 2], [3, 1]], timeout=timedelta(seconds=20))
    tensor = torch.tensor(float(rank))
    dist.all_reduce(tensor, group=part)
    half = dist.split_group(part, [[1, 0]])
    tensor += tensor
    dist.broadcast(tensor, dist.get_global_rank(part, 0), part)
    return [
        dist.get_process_group_ranks(part),
        float(tensor),
        dist.get_rank(part),
        float(sum_of_ones(half)),
    ]


@pytest.mark.nightly("training")
@feature("Functional collectives and torch.compile", "batch_p2p_ops")
def test_batch_p2p_ops(rank: int, world_size: int) -> list[list[float]]:
    """What a compiled batch_isend_irecv calls, eagerly and compiled."""
    peer, name = 1 - rank, dist.group.WORLD.group_name

    def exchange(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ops._c10d_functional.batch_p2p_ops(
            ["isend", "irecv"], [peer, peer], [0, 0], [tensor, torch.empty(3)], name
        )[1]

    found = []
    for function in (exchange, torch.compile(exchange, backend="aot_eager", fullgraph=True)):
        received = functional.wait_tensor(function(torch.full((3,), float(rank))))
        found.append(received.tolist())
    dist.barrier()
    return found


def test_monitored_barrier_without_time_raises_at_once_unless_alone() -> None:
    expected = ["rank(s) 1, 2 did not come"] * 3
    assert run_ranks(monitored_barrier_without_time, 3, backend="hccl") == expected
    assert run_ranks(monitored_barrier_without_time, 1, backend="hccl") == [""]


def monitored_barrier_without_time(rank: int, world_size: int) -> str:
    group = dist.new_group()
    dist.barrier()
    if world_size == 1:
        dist.monitored_barrier(group, timedelta(0))
        return ""
    began = Moment.now()
    with pytest.raises(dist.DistBackendError, match="Timed out after 0 s") as caught:
        dist.monitored_barrier(group, timedelta(0), wait_all_ranks=True)
    assert Moment.now() - began < 5
    return str(caught.value).partition("; ")[2]


def test_timeout_that_was_set_is_that_of_the_groups_calls() -> None:
    run_ranks(calls_with_a_short_timeout, 2, backend="hccl")


def calls_with_a_short_timeout(rank: int, world_size: int) -> None:
    group = dist.new_group()
    c10d._set_pg_timeout(timedelta(seconds=0.3), group)
    if rank == 0:
        for call in (
            lambda: dist.all_reduce(torch.ones(3), group=group),
            lambda: dist.barrier(group, async_op=True).wait(),
        ):
            with pytest.raises(dist.DistBackendError, match=r"Timed out after 0\.3 s"):
                call()
    assert sum_of_ones() == world_size  # the default group has its own


def refusals(calls: list[Any]) -> list[str]:
    """Return the error of each rejected call."""
    texts = []
    for call in calls:
        try:
            texts.append(f"returned {call()}")
        except InvalidArgumentError as error:
            texts.append(str(error).partition(";")[0].replace("expected ", ""))
    return texts


def test_wrong_splits_are_rejected_with_what_was_expected() -> None:
    for texts in run_ranks(wrong_splits, 2, backend="hccl"):
        assert all("ranks of the parent group" in text for text in texts[:-1]), texts
        assert "cannot be merged" in texts[-1]


def wrong_splits(rank: int, world_size: int) -> list[str]:
    group = dist.group.WORLD
    splits: list[Any] = [None, [], [[]], [0, 1], [[0, 2]], [[0], [0, 1]], [[-1, 0]]]
    calls = [lambda wrong=wrong: dist.split_group(split_ranks=wrong) for wrong in splits]
    texts = refusals([*calls, lambda: group.merge_remote_group(dist.HashStore(), 2)])
    assert sum_of_ones() == world_size
    return texts
