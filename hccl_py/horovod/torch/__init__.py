"""Horovod's API for torch: `import hccl_py.horovod.torch as hvd`.

calls              the collectives on tensors, with gradients
optimizer          DistributedOptimizer; gradients: when it reduces them
broadcast_state    all ranks begin with the parameters of one
elastic, sampler   training goes on when a rank is lost
compression, sync_batch_norm, tensors
"""

from hccl_py.horovod import without_tensors
from hccl_py.horovod.handle import poll, synchronize
from hccl_py.horovod.torch import elastic
from hccl_py.horovod.torch.broadcast_state import broadcast_optimizer_state, broadcast_parameters
from hccl_py.horovod.torch.calls import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from hccl_py.horovod.torch.compression import Compression
from hccl_py.horovod.torch.optimizer import DistributedOptimizer
from hccl_py.horovod.torch.sync_batch_norm import SyncBatchNorm
from hccl_py.horovod.without_tensors import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
__all__ += without_tensors.__all__
