"""Moves what torch has made into registered memory: tensors, DDP's buckets, FSDP's buffers."""

import math
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hccl_py.memory.registered import allocate, is_registered
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError


def register(what: Any) -> Any:
    """Move a tensor, or the communication buffers of a model, into registered memory.

    A tensor keeps its values, and all its views and aliases move along; nobody else may use them
    meanwhile. For that its values go through /dev/shm, which must have room for a moment. The
    memory is freed with the last of them. Afterwards it cannot be sent to another process by
    torch.multiprocessing.

    Of a DistributedDataParallel model the gradient buckets are moved as they are used; that takes
    the model's communication hook, which averages them. Of a model of fully_shard (FSDP2), all
    buffers of its all_gathers and reduce_scatters come from registered memory from now on; the
    model must not use custom collectives itself.

    Args:
        what: a dense CPU tensor that owns its memory, or one of these models.

    Returns:
        `what`.

    Raises:
        InvalidArgumentError: it cannot be moved; the message says why and what to do.
        MemoryError: there is not as much memory, see `hccl_py.empty`.
    """
    if isinstance(what, DistributedDataParallel):
        what.register_comm_hook(what.process_group, _average_bucket)
    elif isinstance(what, FSDPModule):
        _register_sharded(what)
    elif isinstance(what, Tensor):
        _move(what)
    else:
        raise InvalidArgumentError(
            "register: expected a torch tensor, a DistributedDataParallel model or one of "
            f"fully_shard, got {type(what).__name__}; for numpy use hccl_py.empty"
        )
    return what


# ---------------------------------------------------------------- tensors


def _move(tensor: Tensor) -> None:
    """Exchange the memory under a tensor's storage."""
    problem = _why_immovable(tensor)
    if problem:
        raise InvalidArgumentError(
            f"register: {problem}; make a tensor with hccl_py.empty and copy into it"
        )
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 or is_registered(storage.data_ptr(), storage.nbytes()):
        return
    if storage.is_shared():
        raise InvalidArgumentError(
            "register: the tensor is shared with other processes (share_memory_); make a tensor "
            "with hccl_py.empty and copy into it"
        )
    region = allocate(storage.nbytes())
    try:
        # Torch's one way to exchange the memory of a storage under all its tensors: it is made a
        # mapping, over which ours is mapped; torch unmaps it when the storage dies.
        descriptor, _ = storage._share_fd_cpu_()
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"register: /dev/shm has no room for {storage.nbytes()} bytes ({error}); make it "
            "larger (docker run --shm-size), or make the tensor with hccl_py.empty"
        ) from error
    region.show_at(storage.data_ptr())
    # Frees what lay in /dev/shm, and makes an attempt to share it by that descriptor fail.
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    weakref.finalize(storage, _let_go, region).atexit = False


def _let_go(_region: _core.Region) -> None:
    """Hold the last reference to the memory under a storage that is gone."""


def _why_immovable(tensor: Tensor) -> str | None:
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        return f"expected a dense CPU tensor, got {tensor.layout} on {tensor.device}"
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()
    except (NotImplementedError, RuntimeError):
        return f"a {type(tensor).__name__} has no memory of its own"
    if not storage.resizable():
        return "the tensor borrows its memory, from numpy for example"
    return None


# ---------------------------------------------------------------- DistributedDataParallel


def _average_bucket(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Run as DDP's communication hook; DDP compares the types above with its own."""
    buffer = bucket.buffer()
    _move(buffer)  # after the first time, only a look at its address
    work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[Any] = work.get_future()

    def result(done: torch.futures.Future[Any]) -> Tensor:
        done.value()  # raises if the all_reduce failed: the buffer then holds no gradient
        return buffer

    return future.then(result)


# ---------------------------------------------------------------- fully_shard


def _register_sharded(model: FSDPModule) -> None:
    pool = _Pool()
    assert isinstance(model, torch.nn.Module)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(_AllGather(pool))  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(_ReduceScatter(pool))  # type: ignore[arg-type]


class _Pool:
    """Buffers of a model: layers of one size take turns, and steps find them again.

    To take memory from the system and give it back would cost more than the collective.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[_core.Region]] = {}

    def take(self, num_bytes: int) -> Tensor:
        """Return bytes that come back when the last view of them is gone."""
        if num_bytes == 0:
            return torch.empty(0, dtype=torch.uint8)
        free = self._free.setdefault(num_bytes, [])
        # A peer may still write to memory of a collective that failed.
        while free and free[-1].is_retired():
            free.pop()
        region = free.pop() if free else allocate(num_bytes)
        memory = torch.from_numpy(region.array())
        weakref.finalize(memory.untyped_storage(), free.append, region).atexit = False
        return memory

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Do what FSDP asks of a collective: make the buffer for it."""
        if device.type != "cpu":
            return torch.empty(*size, dtype=dtype, device=device)
        dimensions = [int(one) for one in size]
        return self.take(math.prod(dimensions) * dtype.itemsize).view(dtype).view(dimensions)


class _AllGather:
    """FSDP's all_gather with buffers of its pool."""

    def __init__(self, pool: _Pool) -> None:
        self.allocate = pool.allocate

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        work: dist.Work | None
        work = dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
        return work


class _ReduceScatter:
    """FSDP's reduce_scatter with buffers of its pool."""

    def __init__(self, pool: _Pool) -> None:
        self.allocate = pool.allocate

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        work: dist.Work | None
        work = dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)
        return work
