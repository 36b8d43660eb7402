"""Groups whose members change: every change that torch's reconfigure names, deaths, strangers.

Before torch 2.14 `init_process_group` cannot ask for such a group; there the tests ask for it.
"""

import os
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.nn.parallel import DistributedDataParallel

from hccl_py.torch_backend.groups import lifecycle
from hccl_py.torch_backend.groups.reconfigure import ReconfigurableGroup

HAS_API = hasattr(dist, "_reconfigure")


def ask_for_changes() -> None:
    """Have hccl make the default group as torch's argument `enable_reconfigure` does."""
    create = lifecycle.create
    names = "store", "group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"

    def create_changing(options: Any, *more: Any) -> Any:
        given = {name: getattr(options, name) for name in names}
        is_default = not options.global_ranks_in_group
        return create(SimpleNamespace(**given, enable_reconfigure=is_default), *more)

    lifecycle.create = create_changing


def init(rank: int, world_size: int, store: Any) -> ReconfigurableGroup:
    """Make the default group, without members."""
    if not HAS_API:
        ask_for_changes()
    dist.init_process_group(
        "hccl",
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=HANG_S),
        **({"enable_reconfigure": True} if HAS_API else {}),  # type: ignore[arg-type]
    )
    group = dist.group.WORLD
    assert isinstance(group, ReconfigurableGroup)
    assert group.supports_reconfigure
    return group


class Member:
    """One rank of a job, whose members exchange handles at the store of the job."""

    def __init__(self, rank: int, world_size: int, own_store: Any = None) -> None:
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        self.rank, self.world_size = rank, world_size
        place = (rank, world_size) if own_store is None else (0, 1)
        self.group = init(*place, own_store or dist.PrefixStore("group", self.store))
        self.uuid = 0

    def handles(self, name: str) -> list[str]:
        """Meet all ranks, and return their handles."""
        handle = dist._get_reconfigure_handle() if HAS_API else self.group.get_reconfigure_handle()  # type: ignore[attr-defined]
        self.store.set(f"{name}/{self.rank}", handle)
        return [self.store.get(f"{name}/{rank}").decode() for rank in range(self.world_size)]

    def reconfigure(self, uuid: int, handles: Any, timeout_s: float = HANG_S) -> None:
        limit = timedelta(seconds=timeout_s)
        if HAS_API:
            dist._reconfigure(uuid, handles, timeout=limit).wait()  # type: ignore[attr-defined]
        else:
            options = SimpleNamespace(uuid=uuid, handles=handles, timeout=limit)
            self.group.reconfigure(options).wait()

    def check(self, rank: int, world_size: int) -> None:
        """Check this rank's number and a sum, in torch's records too."""
        assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
        assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(world_size))
        tensor = torch.full((100,), float(1 << rank))
        dist.all_reduce(tensor)
        assert tensor.tolist() == [float((1 << world_size) - 1)] * 100
        tensor = torch.full((4,), float(rank))
        dist.broadcast(tensor, src=world_size - 1)
        assert tensor.tolist() == [float(world_size - 1)] * 4


def basic(it: Member) -> None:
    it.reconfigure(1, it.handles("basic"))
    it.check(it.rank, 3)
    before, after = (it.rank - 1) % 3, (it.rank + 1) % 3
    received = torch.empty(4)
    sending = dist.isend(torch.full((4,), float(it.rank)), after)
    dist.recv(received, before)
    assert sending is not None
    sending.wait()
    assert received.tolist() == [float(before)] * 4
    it.reconfigure(2, it.handles("the same again"))
    it.check(it.rank, 3)


def shrink(it: Member, gone: int) -> None:
    handles = it.handles("before shrink")
    it.reconfigure(10, handles)
    if it.rank != gone:
        it.reconfigure(11, [one for rank, one in enumerate(handles) if rank != gone])
        it.check(it.rank - (it.rank > gone), 2)
    it.reconfigure(12, it.handles("all again"))
    it.check(it.rank, 3)


def down_and_up(it: Member) -> None:
    handles = it.handles("down and up")
    it.reconfigure(20 + it.rank, [handles[it.rank]])
    it.check(0, 1)
    it.reconfigure(23, handles)  # one to all
    it.check(it.rank, 3)


def late_join(it: Member) -> None:
    handles = it.handles("late join")
    if it.rank < 2:
        it.reconfigure(30, handles[:2])
        it.check(it.rank, 2)
    it.reconfigure(31, it.handles("late join, all"))
    it.check(it.rank, 3)


def split_and_merge(it: Member) -> None:
    handles = it.handles("split")
    if it.rank == 0:
        it.reconfigure(40, handles[:1])
        it.check(0, 1)
    else:
        it.reconfigure(40, handles[1:])  # one uuid is enough for groups without common members
        it.check(it.rank - 1, 2)
    it.reconfigure(42, set(it.handles("merge")))
    it.check(sorted(handles).index(handles[it.rank]), 3)


def after_abort(it: Member) -> None:
    it.reconfigure(50, it.handles("abort"))
    it.group.abort()
    with pytest.raises(dist.DistBackendError, match=r"abort\(\) was called"):
        dist.barrier()
    assert it.group.get_error() == ErrorType.SUCCESS
    it.reconfigure(51, it.handles("after abort"))
    it.check(it.rank, 3)


def after_timeout(it: Member) -> None:
    it.reconfigure(60, it.handles("timeout"))
    it.handles("all are connected")
    if it.rank == 1:
        it.group.set_timeout(timedelta(seconds=0.2))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert work is not None
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            work.wait()
        assert it.group.get_error() == ErrorType.TIMEOUT
        it.group.set_timeout(timedelta(seconds=HANG_S))
    it.reconfigure(61, it.handles("after timeout"))
    it.check(it.rank, 3)


def running_calls(it: Member) -> None:
    """A call that can never end is aborted; one that can is finished."""
    it.reconfigure(70, it.handles("running"))
    tensor = torch.full((100_000,), 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    waiting = dist.irecv(torch.empty(1), src=1) if it.rank == 0 else None
    handles = it.handles("calls have started")
    it.reconfigure(71, handles, 5.0 if it.rank == 0 else HANG_S)
    assert work is not None
    work.wait()
    assert set(tensor.tolist()) == {3.0}
    if waiting is not None:
        with pytest.raises(dist.DistBackendError):
            waiting.wait()
    it.check(it.rank, 3)


def used_uuid(it: Member) -> None:
    (handle,) = {it.handles("used")[it.rank]}
    it.reconfigure(80 + it.rank, [handle])
    with pytest.raises(RuntimeError, match="already used"):
        it.reconfigure(80 + it.rank, [handle])
    it.check(0, 1)  # nothing has changed
    it.reconfigure(83, it.handles("fresh"))
    it.check(it.rank, 3)


def missing_member(it: Member) -> None:
    handles = it.handles("missing")
    if it.rank < 2:
        with pytest.raises(dist.DistBackendError, match="2 of 3 did not arrive"):
            it.reconfigure(90, handles, 3.0)
        with pytest.raises(dist.DistBackendError, match="reconfigure with uuid 90 failed"):
            dist.barrier()
    it.reconfigure(91, it.handles("nobody is missing"))
    it.check(it.rank, 3)


CHANGES: Sequence[Callable[[Member], None]] = (
    basic,
    lambda it: shrink(it, 2),
    down_and_up,
    late_join,
    split_and_merge,
    after_abort,
    after_timeout,
    running_calls,
    used_uuid,
    missing_member,
)


def make_changes(rank: int, world_size: int) -> str:
    it = Member(rank, world_size)
    assert (dist.get_rank(), dist.get_world_size()) == (rank, world_size)
    with pytest.raises(dist.DistBackendError, match="has no members: .*_reconfigure"):
        dist.barrier()
    for change in CHANGES:
        change(it)
    dist.destroy_process_group()
    return "done"


def test_group_of_three_goes_through_every_change() -> None:
    assert run_ranks(make_changes, 3) == ["done"] * 3


def shrink_middle(rank: int, world_size: int) -> None:
    shrink(Member(rank, world_size), 1)


@pytest.mark.nightly("faults")
def test_middle_rank_is_left_out_and_comes_back() -> None:
    run_ranks(shrink_middle, 3)


def train_a_step(world_size: int) -> None:
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(3, 1, bias=False))
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    (gradient,) = (parameter.grad for parameter in model.parameters())
    torch.testing.assert_close(gradient, torch.full((1, 3), (world_size - 1) / 2))


def loses_a_member(rank: int, world_size: int) -> int:
    it = Member(rank, world_size)
    handles = it.handles("all")
    it.reconfigure(1, handles)
    train_a_step(3)
    it.handles("all have trained")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError) as caught:
        while True:
            dist.all_reduce(torch.ones(10))
    assert caught.value.rank == 1  # type: ignore[attr-defined]
    with pytest.raises(dist.DistBackendError, match="of rank 1, pid"):
        it.reconfigure(2, handles)
    it.reconfigure(3, [handles[0], handles[2]])
    it.check(rank // 2, 2)
    train_a_step(2)
    dist.destroy_process_group()
    return dist.Backend.backend_list.count("hccl")


def test_survivors_of_a_death_train_on() -> None:
    assert run_ranks(loses_a_member, 3, victims=[1]) == [1, None, 1]


def comes_from_another_job(rank: int, world_size: int) -> str:
    """The newcomer has a store, and groups, of its own."""
    it = Member(rank, world_size, dist.HashStore() if rank == 2 else None)
    handles = it.handles("all")
    if rank < 2:
        it.reconfigure(1, handles[:2])
        assert dist.new_group([0, 1]) is not None
        dist.monitored_barrier()
    it.reconfigure(2, handles)
    it.check(rank, 3)
    part = dist.new_group([0, 2])  # as if all had made the same number of groups
    tensor = torch.ones(1)
    if rank != 1:
        dist.all_reduce(tensor, group=part)
    dist.monitored_barrier()
    if rank != 2:
        with pytest.raises(dist.DistBackendError, match=r"rank\(s\) 2 did not come"):
            dist.monitored_barrier(timeout=timedelta(seconds=1))
    it.handles("all have seen it")
    dist.destroy_process_group()
    return str(tensor.tolist())


def test_newcomer_from_another_job_makes_groups_with_the_others() -> None:
    assert run_ranks(comes_from_another_job, 3) == ["[2.0]", "[1.0]", "[2.0]"]


def cannot(rank: int, world_size: int) -> bool:
    if hasattr(dist, "get_backend_impl"):
        assert dist.get_backend_impl(None, torch.device("cpu")) is dist.group.WORLD
    return bool(dist.group.WORLD.supports_reconfigure)  # type: ignore[union-attr]


def test_ordinary_group_says_that_it_cannot() -> None:
    assert run_ranks(cannot, 1, backend="hccl") == [False]
