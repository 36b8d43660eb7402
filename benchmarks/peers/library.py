"""The contenders, opened: what each library calls a collective.

Needs only numpy, and inside a function the contender: an environment that holds an MPI has nothing
of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], object]

ROOT = 0
_TIMEOUT_S = 120.0


class Library(NamedTuple):
    """A contender, opened.

    Attributes:
        bind: makes the call of a collective from its input and output; the other two hold where
            input and output are one buffer.
        slowest: replaces each float64 by the maximum over ranks, in place.
        barrier: its own.
        close: leaves the group.
        settle: waits until the calls of all ranks have ended, where a call does not see to that.
        has_result: False where a call moves as many bytes as the collective, but not its data.
    """

    rank: int
    world_size: int
    bind: Callable[[str, Array, Array], Call]
    slowest: Callable[[Array], object]
    barrier: Call
    close: Call
    settle: Call = lambda: None
    has_result: bool = True


def open_communicator(*where: Any) -> Library:
    """Open one; `where` is store, rank and world size, or nothing: by the environment."""
    from hccl_py import Communicator, ReduceOp

    communicator = Communicator(*where, timeout_s=_TIMEOUT_S)

    def bind(op: str, input: Array, output: Array) -> Call:
        calls: dict[str, Call] = {
            "all_reduce": partial(communicator.all_reduce, input),
            "broadcast": partial(communicator.broadcast, input, ROOT),
            "reduce": partial(communicator.reduce, input, ROOT),
            "all_gather": partial(communicator.all_gather, output, input),
            "reduce_scatter": partial(communicator.reduce_scatter, output, input),
            "all_to_all": partial(communicator.all_to_all, output, input),
            "barrier": communicator.barrier,
        }
        return calls[op]

    return Library(
        communicator.rank,
        communicator.world_size,
        bind,
        lambda values: communicator.all_reduce(values, ReduceOp.MAX),
        communicator.barrier,
        communicator.close,
    )


def open_mpi() -> Library:
    """Open the MPI of this environment's mpi4py."""
    mpi: Any = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    rank = world.Get_rank()

    def bind(op: str, input: Array, output: Array) -> Call:
        # With its type named, mpi4py need not find it out in each call.
        data, result = [input, mpi.FLOAT], [output, mpi.FLOAT]
        reduced = (mpi.IN_PLACE, data) if rank == ROOT else (data, None)
        calls: dict[str, Call] = {
            "all_reduce": partial(world.Allreduce, mpi.IN_PLACE, data),
            "broadcast": partial(world.Bcast, data, ROOT),
            "reduce": partial(world.Reduce, *reduced, mpi.SUM, ROOT),
            "all_gather": partial(world.Allgather, data, result),
            "reduce_scatter": partial(world.Reduce_scatter_block, data, result),
            "all_to_all": partial(world.Alltoall, data, result),
            "barrier": world.Barrier,
        }
        return calls[op]

    def slowest(values: Array) -> None:
        world.Allreduce(mpi.IN_PLACE, values, mpi.MAX)

    return Library(rank, world.Get_size(), bind, slowest, world.Barrier, lambda: None)


def open_torch(backend: str) -> Library:
    """Open a process group of torch on a backend, by the environment."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT_S))

    def bind(op: str, input: Array, output: Array) -> Call:
        data, result = torch.from_numpy(input), torch.from_numpy(output)
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, data),
            "broadcast": partial(dist.broadcast, data, ROOT),
            "reduce": partial(dist.reduce, data, ROOT),
            "all_gather": partial(dist.all_gather_single, result, data),
            "reduce_scatter": partial(dist.reduce_scatter_single, result, data),
            "all_to_all": partial(dist.all_to_all_single, result, data),
            "barrier": dist.barrier,
        }
        return calls[op]

    def slowest(values: Array) -> None:
        dist.all_reduce(torch.from_numpy(values), dist.ReduceOp.MAX)

    return Library(
        dist.get_rank(),
        dist.get_world_size(),
        bind,
        slowest,
        dist.barrier,
        dist.destroy_process_group,
    )
