"""Horovod's API for TensorFlow 2: `import hccl_py.horovod.tensorflow as hvd`. It imports no torch.

reduce_calls, move_calls    the collectives on tensors, with gradients
gradients                   DistributedGradientTape; compression: what gradients travel as
elastic                     training goes on when a rank is lost

`hccl_py.horovod.keras` has DistributedOptimizer and the callbacks, also as `.tensorflow.keras`.
"""

from typing import Any

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
from hccl_py.horovod.join import join
from hccl_py.horovod.objects import allgather_object, broadcast_object
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hccl_py.horovod.reductions import Adasum, Average, Max, Min, Product, Sum
from hccl_py.horovod.tensorflow import elastic
from hccl_py.horovod.tensorflow.compression import Compression
from hccl_py.horovod.tensorflow.gradients import DistributedGradientTape
from hccl_py.horovod.tensorflow.move_calls import (
    allgather,
    alltoall,
    broadcast,
    broadcast_variables,
    grouped_allgather,
)
from hccl_py.horovod.tensorflow.reduce_calls import allreduce, grouped_allreduce, reducescatter
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
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
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
    "grouped_allreduce",
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
    "rank",
    "reducescatter",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
]


def DistributedOptimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Return `hccl_py.horovod.keras.DistributedOptimizer` of an optimizer of Keras."""
    from hccl_py.horovod import keras

    return keras.DistributedOptimizer(optimizer, *args, **kwargs)
