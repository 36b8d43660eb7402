"""Moves torch's memory into registered memory: tensors, DDP's buckets, FSDP's buffers."""

import math
import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hccl_py.memory.registered import allocate
from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.errors import InvalidArgumentError


def register(what: Any) -> Any:
    """Move a tensor, or the communication buffers of a model, into registered memory.

    A tensor keeps its values, and its views and aliases move with it; no other thread may use them
    meanwhile. The values pass through /dev/shm, which briefly needs room. The memory is freed
    with the last view. torch.multiprocessing can no longer send the tensor to another process.

    The gradient buckets of a DistributedDataParallel model are moved when they are used; this
    occupies the model's communication hook, which averages them. A model of fully_shard (FSDP2)
    then takes all buffers of its all_gathers and reduce_scatters from registered memory; it must
    not use custom collectives itself.

    Args:
        what: a dense CPU tensor that owns its memory, or one of these models.

    Returns:
        `what`.

    Raises:
        InvalidArgumentError: it cannot be moved; the message says why and what to do.
        MemoryError: there is not enough memory, see `hccl_py.empty`.
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


def _move(tensor: Tensor) -> None:
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise _immovable(f"expected a dense CPU tensor, got {tensor.layout} on {tensor.device}")
    try:
        storage = tensor.untyped_storage()
        address, num_bytes = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError) as error:
        raise _immovable(f"a {type(tensor).__name__} has no memory of its own") from error
    if not storage.resizable():
        raise _immovable("the tensor borrows its memory, from numpy for example")
    if num_bytes == 0 or arena_of_this_process().holds(address, num_bytes):
        return
    if storage.is_shared():
        raise _immovable("the tensor is shared with other processes (share_memory_)")
    region = allocate(num_bytes)
    try:
        # Torch's only way to replace a storage's memory under all its tensors: torch makes it a
        # mapping, over which ours is mapped; torch unmaps it when the storage dies.
        descriptor, _ = storage._share_fd_cpu_()
    except RuntimeError as error:
        raise InvalidArgumentError(
            f"register: /dev/shm has no room for {num_bytes} bytes ({error}); make it "
            "larger (docker run --shm-size), or make the tensor with hccl_py.empty"
        ) from error
    region.show_at(storage.data_ptr())
    # Frees the memory in /dev/shm, and makes later attempts to share the tensor fail.
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    # Drops the last reference to the memory.
    weakref.finalize(storage, lambda _region: None, region).atexit = False


def _immovable(problem: str) -> InvalidArgumentError:
    advice = "make a tensor with hccl_py.empty and copy into it"
    return InvalidArgumentError(f"register: {problem}; {advice}")


def _average_bucket(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket, as DDP's communication hook; DDP checks the types above."""
    buffer = bucket.buffer()
    _move(buffer)  # after the first time, only a check of its address
    work = dist.all_reduce(buffer, dist.ReduceOp.AVG, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[Any] = work.get_future()

    def result(done: torch.futures.Future[Any]) -> Tensor:
        done.value()  # raises if the all_reduce failed: the buffer then holds no gradient
        return buffer

    return future.then(result)


def _register_sharded(model: FSDPModule) -> None:
    free: dict[int, list[_core.Region]] = defaultdict(list)
    all_gather = _Collective(dist.all_gather_into_tensor, free)
    reduce_scatter = _Collective(dist.reduce_scatter_tensor, free)
    assert isinstance(model, torch.nn.Module)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(all_gather)  # type: ignore[arg-type]
            module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]


@dataclass
class _Collective:
    """A collective of FSDP with its buffers, which layers of one size and later steps share.

    Allocating the memory each time would cost more than the collective. `free` belongs to the
    model, by size in bytes.
    """

    run: Callable[..., Any]
    free: dict[int, list[_core.Region]]

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return the buffer that FSDP requests; it is free again with its last view."""
        num_bytes = math.prod(map(int, size)) * dtype.itemsize
        if device.type != "cpu" or num_bytes == 0:
            return torch.empty(*size, dtype=dtype, device=device)
        free = self.free[num_bytes]
        # A peer may still write to memory of a collective that failed.
        while free and free[-1].is_retired():
            free.pop()
        region = free.pop() if free else allocate(num_bytes)
        memory = torch.from_numpy(region.array())
        weakref.finalize(memory.untyped_storage(), free.append, region).atexit = False
        return memory.view(dtype).view([*map(int, size)])

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **options: Any) -> Any:
        """Run it; `options` are FSDP's and the collective's."""
        return self.run(output_tensor, input_tensor, **options)
