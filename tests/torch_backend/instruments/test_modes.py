"""Torch's dispatch modes see the operators that they see with gloo, on the caller's tensors."""

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode


def call_all(rank: int, n: int) -> None:
    part, whole, parts = torch.ones(2), torch.ones(2 * n), list(torch.ones(n, 2).unbind())
    for options in ({}, {"async_op": True}):
        works: list[Any] = [
            dist.all_reduce(part, dist.ReduceOp.MAX, **options),
            dist.broadcast(part, 1, **options),
            dist.reduce(part, 0, **options),
            dist.all_gather(parts, part, **options),
            dist.all_gather_single(whole, part, **options),
            dist.reduce_scatter(part, parts, **options),
            dist.reduce_scatter_single(part, whole, **options),
            dist.gather(part, parts if rank == 0 else None, **options),
            dist.scatter(part, parts if rank == 0 else None, **options),
            dist.all_to_all_single(whole, whole.clone(), **options),
            dist.barrier(**options),
        ]
        for work in works:
            if options:
                work.wait()
    for pair in [(part, part.clone())], [(whole, part)], [(part, whole)]:
        with dist._coalescing_manager():
            for output, source in [*pair, *((output.clone(), source) for output, source in pair)]:
                if output.numel() == source.numel():
                    dist.all_reduce(output)
                elif output.numel() > source.numel():
                    dist.all_gather_single(output, source)
                else:
                    dist.reduce_scatter_single(output, source)
    _ = dist.send(part, 1) if rank == 0 else dist.recv(part, 0)
    dist.all_gather_object([None] * n, "object")
    dist.all_reduce(torch.eye(2).to_sparse())
    functional.all_reduce(part, "sum", dist.group.WORLD).add_(1)


def call_on_fake_tensors(rank: int, n: int) -> None:
    with FakeTensorMode():
        dist.all_reduce(torch.ones(2))


def count(rank: int, n: int, *names: str) -> list[dict[str, int]]:
    counts = []
    for name in names:
        with CommDebugMode() as mode:
            globals()[name](rank, n)
        counts.append({str(name): number for name, number in mode.get_comm_counts().items()})
    return counts


EAGER = {
    "c10d.allreduce_": 3,
    "c10d.broadcast_": 2,
    "c10d.reduce_": 2,
    "c10d.allgather_": 2,
    "c10d._allgather_base_": 2,
    "c10d.reduce_scatter_": 2,
    "c10d._reduce_scatter_base_": 2,
    "c10d.gather_": 2,
    "c10d.scatter_": 2,
    "c10d.alltoall_base_": 2,
    "c10d.allreduce_coalesced_": 1,
    "c10d.allgather_into_tensor_coalesced_": 1,
    "c10d.reduce_scatter_tensor_coalesced_": 1,
    "c10d_functional.all_reduce": 1,
}
"""Of `call_all`. Barriers, sends and receives are operators too, but CommDebugMode counts none."""

# From 2.15 on torch gathers objects into one tensor: first their sizes, then their bytes.
EAGER["c10d.allgather_" if torch.__version__ < "2.15" else "c10d._allgather_base_"] += 2


@pytest.mark.parametrize(
    "backend", ["hccl", pytest.param("gloo", marks=pytest.mark.nightly("calls"))]
)
def test_comm_debug_mode_counts_eager_calls(backend: str) -> None:
    counts = run_ranks(count, 2, "call_all", "call_on_fake_tensors", backend=backend)
    assert counts == [[EAGER, {"c10d.allreduce_": 1}]] * 2


class Noting(TorchDispatchMode):
    """Notes the operators of c10d and the first tensor of each."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Any]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function.namespace == "c10d":
            self.seen.append((function.name(), arguments[0][0]))
        return function(*arguments, **(options or {}))


def nest_modes(rank: int, world_size: int) -> None:
    tensor = torch.ones(2)
    with Noting() as outer, Noting() as inner:
        dist.all_reduce(tensor)
        thread = threading.Thread(target=dist.all_reduce, args=(tensor,))  # in no mode
        thread.start()
        thread.join()
        tensor.add_(1)  # the modes are as they were
    assert tensor.tolist() == [2, 2]
    for mode in outer, inner:
        ((name, seen),) = mode.seen
        assert (name, seen is tensor) == ("c10d::allreduce_", True)


def test_each_mode_of_the_calling_thread_sees_the_callers_tensor_once() -> None:
    run_ranks(nest_modes, 1, backend="hccl")
