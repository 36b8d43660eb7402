"""Horovod's API for Keras 3 on TensorFlow: `import hccl_py.horovod.keras as hvd`.

optimizer    DistributedOptimizer
callbacks    for model.fit: broadcast, averages of metrics, learning rates
elastic      training goes on when a rank is lost

It imports no torch. Its allreduce, allgather and broadcast take and return numpy arrays.
"""

from collections.abc import Sequence
from typing import Any

import keras

from hccl_py.horovod.array_calls import allgather, allreduce, barrier, broadcast, reducescatter
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
from hccl_py.horovod.keras import callbacks, elastic
from hccl_py.horovod.keras.optimizer import DistributedOptimizer
from hccl_py.horovod.objects import allgather_object, broadcast_object
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hccl_py.horovod.reductions import Adasum, Average, Max, Min, Product, Sum
from hccl_py.horovod.tensorflow.compression import Compression, Compressor
from hccl_py.horovod.tensorflow.move_calls import broadcast_variables
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
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "load_model",
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


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type[Compressor] = Compression.none,
) -> Any:
    """Load a compiled model, and make its optimizer a DistributedOptimizer."""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    model.jit_compile = False
    return model
