"""Groups: made of some ranks, asked what they are, ended, made again, aborted and shrunk."""

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from features import feature

SECTION = "Groups"
RANKS = 4
SUBSETS = [[0, 1], [2, 3], [0, 2, 3], [3], None]


def sum_of_ranks(group: Any = None) -> int:
    """Reduce; 100 for each rank that came, so that nobody is counted twice unseen."""
    tensor = torch.tensor([dist.get_rank() + 100, 7])
    dist.all_reduce(tensor, group=group)
    return int(tensor[0])


def expected(*members: int) -> int:
    return sum(members) + 100 * len(members)


def is_member(group: Any) -> bool:
    return isinstance(group, dist.ProcessGroup)


@feature(
    SECTION,
    "new_group: subsets that overlap",
    covers=("new_group",),
    world_size=RANKS,
)
def test_new_group(rank: int, world_size: int) -> list[Any]:
    groups = [dist.new_group(part) for part in SUBSETS]
    return [sum_of_ranks(group) if is_member(group) else None for group in groups]


@feature(
    SECTION,
    "new_group: every argument",
    covers=("new_group", "get_process_group_ranks"),
    world_size=RANKS,
)
def test_new_group_arguments(rank: int, world_size: int) -> list[Any]:
    """Members only, in an order of their own, with timeout and description."""
    if rank not in (0, 2):
        return []
    group = dist.new_group(
        [2, 0],
        timeout=timedelta(seconds=20),
        backend=dist.get_backend(),
        pg_options=None,
        use_local_synchronization=True,
        group_desc="pair",
        sort_ranks=False,
    )
    timeout = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    ranks = dist.get_process_group_ranks(group)
    return [ranks, dist.get_rank(group), group.group_desc, timeout, sum_of_ranks(group)]


@feature(
    SECTION,
    "new_subgroups",
    covers=("new_subgroups",),
    world_size=RANKS,
)
def test_new_subgroups(rank: int, world_size: int) -> list[int]:
    mine, all_of_them = dist.new_subgroups(2)
    return [len(all_of_them), sum_of_ranks(mine)]


@feature(
    SECTION,
    "new_subgroups_by_enumeration",
    covers=("new_subgroups_by_enumeration",),
    world_size=RANKS,
)
def test_new_subgroups_by_enumeration(rank: int, world_size: int) -> list[int]:
    mine, all_of_them = dist.new_subgroups_by_enumeration([[0, 3], [1, 2]])
    return [len(all_of_them), sum_of_ranks(mine)]


@feature(
    SECTION,
    "questions about ranks",
    covers=(
        *("get_rank", "get_world_size", "get_group_rank", "get_global_rank"),
        *("get_process_group_ranks", "get_pg_count", "get_node_local_rank", "is_initialized"),
    ),
    world_size=RANKS,
)
def test_questions_about_ranks(rank: int, world_size: int) -> list[Any]:
    group = dist.new_group([2, 3])
    found = [
        dist.get_rank(),
        dist.get_world_size(),
        dist.is_initialized(),
        dist.get_pg_count(),
        dist.get_process_group_ranks(dist.group.WORLD),
        dist.get_node_local_rank(),
        dist.get_rank(group),
    ]
    if is_member(group):
        found += [
            dist.get_world_size(group),
            dist.get_process_group_ranks(group),
            dist.get_group_rank(group, 3),
            dist.get_global_rank(group, 1),
        ]
    return found


@feature(
    SECTION,
    "questions about the backend",
    covers=(
        *("get_backend", "get_backend_config", "is_backend_available"),
        *("get_default_backend_for_device", "supports_complex"),
    ),
    own_group=True,
    world_size=RANKS,
)
def test_questions_about_the_backend(rank: int, world_size: int, backend: str) -> list[Any]:
    dist.init_process_group(backend)
    found = [
        dist.get_backend() == backend,
        backend in dist.get_backend_config(),
        dist.is_backend_available(backend),
        dist.is_backend_available("no such"),
        str(dist.get_default_backend_for_device("cpu")),
        dist.distributed_c10d.supports_complex(dist.ReduceOp.SUM),
        dist.distributed_c10d.supports_complex(dist.ReduceOp.MAX),
    ]
    dist.barrier()
    dist.destroy_process_group()
    return found


@feature(
    SECTION,
    "destroy_process_group of one group",
    covers=("destroy_process_group",),
    world_size=RANKS,
    alone=lambda n: [[expected(*range(n)), True, expected(*range(n)), expected(*range(n))]] * n,
    differs="a group that was destroyed goes on working",
)
def test_destroy_one_group(rank: int, world_size: int) -> list[Any]:
    """The others go on, and one of the same ranks can be made again."""
    first, second = dist.new_group(), dist.new_group()
    found: list[Any] = [sum_of_ranks(first)]
    dist.barrier(first)
    dist.destroy_process_group(first)
    try:
        sum_of_ranks(first)
    except (RuntimeError, ValueError):
        found.append(True)
    return [*found, sum_of_ranks(second), sum_of_ranks(dist.new_group())]


@feature(
    SECTION,
    "init_process_group after destroy_process_group",
    covers=("init_process_group", "destroy_process_group"),
    own_group=True,
    world_size=RANKS,
    note="on the same store too, where gloo needs a new one",
)
def test_initialisation_again(rank: int, world_size: int, backend: str) -> list[Any]:
    found = []
    for life in "abc":
        if backend == "gloo":  # it does not find its way in a store that it was in before
            os.environ["TORCHELASTIC_RESTART_COUNT"] += life
        dist.init_process_group(backend)
        half = dist.new_group([0, 1])
        found += [sum_of_ranks(), sum_of_ranks(half) if is_member(half) else None]
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()
    return found


@feature(
    SECTION,
    "shrink_group",
    covers=("shrink_group",),
    own_group=True,
    world_size=RANKS,
    alone=lambda n: [[[0, 1, 2], 3, rank, 303] if rank < 3 else [] for rank in range(n)],
)
def test_shrink_group(rank: int, world_size: int, backend: str) -> list[Any]:
    """Without a rank that leaves; after one has died: docs/failures/recovery.md."""
    dist.init_process_group(backend)
    dist.barrier()
    if rank == 3:
        dist.destroy_process_group()
        return []
    left = dist.shrink_group([3])
    found = [
        dist.get_process_group_ranks(left),
        dist.get_world_size(),
        dist.get_rank(),
        sum_of_ranks(left),
    ]
    dist.barrier()
    dist.destroy_process_group()
    return found


@feature(
    SECTION,
    "record_comm",
    covers=("record_comm",),
    world_size=RANKS,
)
def test_record_comm(rank: int, world_size: int) -> list[Any]:
    """Names what is inside of it to the profiler."""
    with torch.profiler.profile() as profile, dist.record_comm("of the user's"):
        total = sum_of_ranks()
    return [total, any("of the user's" in event.key for event in profile.key_averages())]
