"""Groups made beside the default group, between jobs: how training hands weights to inference."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from tiers import by_night
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import Backend, _new_process_group_helper, _world

from hccl_py.schedulers.ports import free_port

TIMEOUT = timedelta(seconds=30)
NUM_VALUES = 1000


EVERY_DAY = ("hccl", 2, False), ("gloo", 2, True)
OTHERS = ("hccl", 1, True), ("hccl", 1, False), ("hccl", 2, True), ("gloo", 1, False)
"""Backend of the jobs, their sizes, and whether the groups name their ranks."""


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)


def between_jobs(
    name: str, port: int, rank: int, size: int, ranks: list[int], backend: str = "hccl"
) -> dist.ProcessGroup:
    """Make a group as SGLang, OpenRLHF and torchft do: from a store of its own."""
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, TIMEOUT, wait_for_workers=False)
    return beside(name, PrefixStore(name, store), rank, size, ranks, backend)


def beside(
    name: str, store: dist.Store, rank: int, size: int, ranks: list[int], backend: str = "hccl"
) -> dist.ProcessGroup:
    group, _ = _new_process_group_helper(
        size, rank, ranks, Backend(backend), store, group_name=name, timeout=TIMEOUT
    )
    _world.pg_group_ranks[group] = {index: index for index in range(size)}
    return group


def start_job(port: int, rank: int, world_size: int, backend: str) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0, TIMEOUT, wait_for_workers=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def check_weights_arrive(group: dist.ProcessGroup, rank: int, size: int) -> None:
    for root in range(size):
        tensor = torch.full((NUM_VALUES,), float(rank))
        group.broadcast([tensor], root).wait()
        assert (tensor == root).all(), f"rank {rank} keeps {tensor[0]} where {root} was sent"
    tensor = torch.tensor([rank + 1.0])
    group.allreduce([tensor]).wait()
    assert tensor.item() == size * (size + 1) / 2


def check_two_jobs(rank: int, size: int, ports: list[int], default: str, ranks: list[int]) -> None:
    """Be a rank of one of two equal jobs, and of groups between them."""
    num_ranks = size // 2
    job, job_rank = divmod(rank, num_ranks)
    start_job(ports[job], job_rank, num_ranks, default)
    groups = [between_jobs(f"weights-{port}", port, rank, size, ranks) for port in ports[2:]]
    for group in reversed(groups):
        check_weights_arrive(group, rank, size)
    # The default group is the job's own, before and after.
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == num_ranks
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("default", "num_ranks", "names_ranks"), [*EVERY_DAY, *by_night("training", *OTHERS)]
)
def test_groups_between_two_jobs_deliver(default: str, num_ranks: int, names_ranks: bool) -> None:
    size = 2 * num_ranks
    named = list(range(size)) if names_ranks else []
    run_ranks(check_two_jobs, size, free_ports(4), default, named)


def check_pair_with_ranks_of_the_default_group(rank: int, size: int, ports: list[int]) -> None:
    """Two jobs of two; their first ranks make a pair and call themselves ranks 0 and 1."""
    job, job_rank = divmod(rank, 2)
    start_job(ports[job], job_rank, 2, "hccl")
    if job_rank == 0:
        check_weights_arrive(between_jobs("pair", ports[2], job, 2, [0, 1]), job, 2)
    dist.barrier()
    dist.destroy_process_group()


def test_pair_that_names_ranks_of_the_default_group_meets_at_its_own_store() -> None:
    run_ranks(check_pair_with_ranks_of_the_default_group, 4, free_ports(3))
