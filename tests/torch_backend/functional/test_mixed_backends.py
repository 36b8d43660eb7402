"""A backend for each device: what torch makes of it where hccl is one of them."""

import os
from typing import Any

import torch
import torch.distributed as dist
from features import feature

from hccl_py.transport.errors import InvalidArgumentError

SECTION = "Accelerators and mixed backends"


def with_backends(rank: int, world_size: int, backends: str) -> list[Any]:
    """Tell what a group is, and what it makes of a CPU tensor."""
    dist.init_process_group(backends)
    tensor = torch.full((3,), rank + 1.0)
    try:
        dist.all_reduce(tensor)
        found = tensor.tolist()
    except (RuntimeError, ValueError) as error:
        found = [type(error).__name__]
    dist.barrier()
    found = [dist.get_backend_config(), *found]
    dist.destroy_process_group()
    return found


def sums(config: str) -> Any:
    return lambda n: [[config, *[n * (n + 1) / 2] * 3]] * n


def refusals(config: str) -> Any:
    return lambda n: [[config, "InvalidArgumentError"]] * n


@feature(SECTION, 'backend="cpu:hccl"', own_group=True, alone=sums("cpu:hccl"), differs="its name")
def test_cpu(rank: int, world_size: int, backend: str) -> list[Any]:
    return with_backends(rank, world_size, f"cpu:{backend}")


@feature(
    SECTION,
    'backend="cpu:hccl,cuda:nccl": CPU tensors',
    own_group=True,
    alone=sums("cpu:hccl,cuda:nccl"),
    differs="its name",
    note="CUDA tensors are rejected; the error says what to write, "
    '`new_group(backend="nccl")`: torch gives a group with a backend in Python in it to that one '
    "alone",
)
def test_cpu_tensors_beside_nccl(rank: int, world_size: int, backend: str) -> list[Any]:
    """NCCL stands behind hccl, where torch does not come to."""
    if backend == "gloo":
        return with_backends(rank, world_size, "cpu:gloo,cuda:gloo")
    return with_backends(rank, world_size, "cpu:hccl,cuda:nccl")


@feature(
    SECTION,
    'backend="cpu:gloo,cuda:hccl": CPU tensors',
    own_group=True,
    alone=refusals("cpu:gloo,cuda:hccl"),
    differs="gloo takes them where all backends are torch's own",
    note='rejected; the error says what to write, `new_group(backend="gloo")`',
)
def test_cpu_tensors_of_gloo(rank: int, world_size: int, backend: str) -> list[Any]:
    if backend == "gloo":
        return with_backends(rank, world_size, "cpu:gloo,cuda:gloo")
    return with_backends(rank, world_size, "cpu:gloo,cuda:hccl")


def sums_of_two(world_size: int) -> list[Any]:
    total = world_size * (world_size + 1) / 2
    return [[total, total]] * world_size


@feature(SECTION, "a second group of another backend", own_group=True, alone=sums_of_two)
def test_second_group_of_another_backend(rank: int, world_size: int, backend: str) -> list[float]:
    """What the errors tell to write, both ways round."""
    found = []
    for first, second in (("cpu:gloo,cuda:hccl", "gloo"), ("gloo", "hccl")):
        os.environ["TORCHELASTIC_RESTART_COUNT"] += f"-{first}"
        dist.init_process_group("gloo" if backend == "gloo" else first)
        group = dist.new_group(backend="gloo" if backend == "gloo" else second)
        tensor = torch.tensor(rank + 1.0)
        dist.all_reduce(tensor, group=group)
        found.append(float(tensor))
        dist.barrier()
        dist.destroy_process_group()
    return found


def test_every_method_rejects_and_says_what_to_write() -> None:
    from ranks import run_ranks

    for rejected in run_ranks(every_method, 2):
        assert len(rejected) >= 18
        for name, text in rejected.items():
            assert name in text
            assert 'new_group(backend="gloo")' in text


def every_method(rank: int, world_size: int) -> dict[str, str]:
    dist.init_process_group("cpu:gloo,cuda:hccl")
    group: Any = dist.group.WORLD
    one, two = torch.ones(2), torch.ones(4)
    halves = [torch.ones(2), torch.ones(2)]
    calls: dict[str, tuple[Any, ...]] = {
        "allreduce": ([one],),
        "allreduce_coalesced": ([one, two],),
        "reduce": ([one],),
        "broadcast": ([one],),
        "reduce_scatter": ([one], [halves]),
        "reduce_scatter_single": (one, two),
        "reduce_scatter_single_coalesced": ([one], [two]),
        "allgather": ([halves], [one]),
        "allgather_coalesced": ([[one], [one]], [one]),
        "all_gather_single": (two, one),
        "all_gather_single_coalesced": ([two], [one]),
        "gather": ([halves], [one]),
        "scatter": ([one], [halves]),
        "alltoall": (halves, halves),
        "all_to_all_single": (one, one, [], []),
        "send": ([one], 1 - rank),
        "recv": ([one], 1 - rank),
        "recv_anysource": ([one],),
    }
    rejected = {}
    part = group.split_group([0, 1])
    for each in (group, part):
        for name, arguments in calls.items():
            try:
                getattr(each, name)(*arguments)
            except InvalidArgumentError as error:
                rejected[name] = str(error)
    assert group._device_types == [] or torch.accelerator.is_available()
    sub = dist.new_group()
    try:
        dist.broadcast(one, 0, group=sub)
    except InvalidArgumentError as error:
        rejected["broadcast"] = str(error)
    part.shutdown()
    dist.barrier()
    dist.destroy_process_group()
    return rejected
