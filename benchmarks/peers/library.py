"""The contenders, opened: the collectives of each library behind one interface.

Imports only numpy, and the contender inside a function, because the environment of an MPI has
nothing of hccl-py.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Call = Callable[[], object]

ROOT = 0
_TIMEOUT_S = 120.0


class Library(NamedTuple):
    """An open contender.

    Attributes:
        bind: makes the call of a collective from its input and output; in place, both are the same
            array.
        slowest: replaces each float64 by the maximum over ranks, in place.
        barrier: the library's barrier.
        close: leaves the group.
        zeros: makes a buffer of so many float32.
        settle: waits until the calls of all ranks have ended, if a call does not.
        has_result: False if a call moves as many bytes as the collective, but not its data.
    """

    rank: int
    world_size: int
    bind: Callable[[str, Array, Array], Call]
    slowest: Callable[[Array], object]
    barrier: Call
    close: Call
    zeros: Callable[[int], Array] = partial(np.zeros, dtype=np.float32)
    settle: Call = lambda: None
    has_result: bool = True


def open_communicator() -> Library:
    """Open a Communicator by the environment."""
    from hccl_py import Communicator

    return of_communicator(Communicator(timeout_s=_TIMEOUT_S))


def of_communicator(communicator: Any) -> Library:
    """Make a library of an open communicator."""
    from hccl_py.bench.collective.over_communicator import CommunicatorContender

    contender = CommunicatorContender(communicator)
    return _ours(contender, communicator.rank, communicator.world_size, lambda array: array)


def open_torch(backend: str) -> Library:
    """Open a process group of torch on a backend, by the environment."""
    import torch

    from hccl_py.bench.collective.contender import Endpoint
    from hccl_py.bench.collective.over_torch import TorchContender

    torch.set_num_threads(1)
    rank, world_size, port = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")
    )
    endpoint = Endpoint(rank, world_size, os.environ["MASTER_ADDR"], port, _TIMEOUT_S)
    return _ours(TorchContender(backend, endpoint), rank, world_size, torch.from_numpy)


def _ours(contender: Any, rank: int, world_size: int, buffer: Callable[[Array], Any]) -> Library:
    """Make a library of a contender of `hccl-bench`; `buffer` makes its buffer of an array."""
    from hccl_py.bench.collective.oracle import BARRIER
    from hccl_py.bench.collective.oracle import Call as Described

    def described(op: str, reduce_op: str, in_place: bool) -> Described:
        return Described(op, world_size, ROOT, reduce_op, "float32", 0, in_place=in_place)

    def bind(op: str, input: Array, output: Array) -> Call:
        call = described(op, "sum", output is input)
        return contender.bind(call, buffer(input), buffer(output))  # type: ignore[no-any-return]

    def slowest(values: Array) -> None:
        contender.bind(described("all_reduce", "max", True), *[buffer(values)] * 2)()

    barrier = contender.bind(BARRIER, None, None)
    return Library(rank, world_size, bind, slowest, barrier, contender.close)


def open_mpi() -> Library:
    """Open the MPI of this environment's mpi4py."""
    mpi: Any = import_module("mpi4py.MPI")
    world = mpi.COMM_WORLD
    rank = world.Get_rank()

    def bind(op: str, input: Array, output: Array) -> Call:
        # With a type, so that mpi4py does not look it up in each call.
        data, result = [input, mpi.FLOAT], [output, mpi.FLOAT]
        into = (mpi.IN_PLACE, data) if output is input else (data, result)
        reduced = into if rank == ROOT else (data, None)
        calls: dict[str, Call] = {
            "all_reduce": partial(world.Allreduce, *into),
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


def open_oneccl() -> Library:
    """Open oneCCL by the shared object at ONECCL; the MPI that it uses introduces the ranks."""
    by_mpi = open_mpi()
    rank, world_size = by_mpi.rank, by_mpi.world_size
    oneccl = ctypes.CDLL(os.environ["ONECCL"])
    address = np.zeros(oneccl.oneccl_address_bytes() // 4, np.float32)
    address_at = ctypes.c_void_p(address.ctypes.data)
    if rank == ROOT:
        oneccl.oneccl_meet(rank, address_at)
    by_mpi.bind("broadcast", address, address)()
    if rank != ROOT:
        oneccl.oneccl_meet(rank, address_at)
    oneccl.oneccl_connect(rank, world_size)

    def bind(op: str, input: Array, output: Array) -> Call:
        call = getattr(oneccl, f"oneccl_{op}")
        call.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        count = output.size if op == "reduce_scatter" else input.size
        if op == "all_to_all":
            count //= world_size
        return partial(call, input.ctypes.data, output.ctypes.data, count, ROOT)

    nothing = np.zeros(0, np.float32)
    barrier = bind("barrier", nothing, nothing)
    return Library(rank, world_size, bind, by_mpi.slowest, barrier, oneccl.oneccl_close)


def open_deepspeed() -> Library:
    """Open DeepSpeed's shared memory for inference, which has only sums; gloo does the rest."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    builder: Any = import_module("deepspeed.ops.op_builder.cpu.comm").ShareMemCommBuilder()
    builder.load().initialize(world_size, rank)
    all_reduce: Any = torch.ops.deepspeed.inference_all_reduce_
    barrier = partial(all_reduce, torch.zeros(1))
    barrier()
    # All ranks have mapped it. DeepSpeed leaves it there.
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    os.unlink(f"/dev/shm/deepspeed_allreduce_buffer_{os.getuid()}_{address}_{port}_{rank}")

    def bind(op: str, input: Array, output: Array) -> Call:
        return partial(all_reduce, torch.from_numpy(input))

    def slowest(values: Array) -> None:
        dist.all_reduce(torch.from_numpy(values), dist.ReduceOp.MAX)

    return Library(rank, world_size, bind, slowest, barrier, dist.destroy_process_group)
