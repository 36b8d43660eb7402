"""Horovod's API for torch: `import hccl_py.horovod.torch as hvd`.

reduce_calls, move_calls    the collectives on tensors, with gradients
optimizer                   DistributedOptimizer; gradients: when it reduces them
broadcast_state             all ranks begin with the parameters of one
elastic, sampler            training goes on when a rank is lost
compression, sync_batch_norm, tensors
"""

from hccl_py.horovod.array_calls import barrier
from hccl_py.horovod.built import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from hccl_py.horovod.errors import HorovodInternalError
from hccl_py.horovod.handle import poll, synchronize
from hccl_py.horovod.join import join
from hccl_py.horovod.objects import allgather_object, broadcast_object
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hccl_py.horovod.reductions import Adasum, Average, Max, Min, Product, Sum
from hccl_py.horovod.torch import elastic
from hccl_py.horovod.torch.broadcast_state import broadcast_optimizer_state, broadcast_parameters
from hccl_py.horovod.torch.compression import Compression
from hccl_py.horovod.torch.move_calls import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
)
from hccl_py.horovod.torch.optimizer import DistributedOptimizer
from hccl_py.horovod.torch.reduce_calls import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
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
from hccl_py.horovod.torch.sync_batch_norm import SyncBatchNorm
from hccl_py.horovod.world import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]
