"""A backend for each device: what torch makes of it where hccl is one of them."""

import os
from typing import Any

import torch
import torch.distributed as dist
from features import feature

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED

SECTION = "Accelerators and mixed backends"
BESIDE = "cpu:hccl,cuda:gloo" if IS_SUPPORTED else "cpu:hccl,cuda:nccl"
"""NCCL itself needs a GPU."""


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
    alone=sums(BESIDE),
    differs="its name",
    note="before torch 2.14 CUDA tensors are rejected, because torch gives a group with a backend "
    'in Python in it to that one alone; the error says what to write, `new_group(backend="nccl")`',
)
def test_cpu_tensors_beside_nccl(rank: int, world_size: int, backend: str) -> list[Any]:
    """Before torch 2.14 NCCL stands behind hccl, where torch does not come to."""
    if backend == "gloo":
        return with_backends(rank, world_size, "cpu:gloo,cuda:gloo")
    return with_backends(rank, world_size, BESIDE)


@feature(
    SECTION,
    'backend="cpu:gloo,cuda:hccl": CPU tensors',
    own_group=True,
    alone=(sums if IS_SUPPORTED else refusals)("cpu:gloo,cuda:hccl"),
    differs="gloo takes them where all backends are torch's own",
    note='before torch 2.14 rejected; the error says what to write, `new_group(backend="gloo")`',
)
def test_cpu_tensors_of_gloo(rank: int, world_size: int, backend: str) -> list[Any]:
    if backend == "gloo":
        return with_backends(rank, world_size, "cpu:gloo,cuda:gloo")
    return with_backends(rank, world_size, "cpu:gloo,cuda:hccl")


@feature(SECTION, "a second group of another backend", own_group=True)
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
