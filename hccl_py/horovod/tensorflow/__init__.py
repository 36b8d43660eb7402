"""Horovod's API for TensorFlow 2: `import hccl_py.horovod.tensorflow as hvd`. It imports no torch.

calls        the collectives on tensors, with gradients
gradients    DistributedGradientTape; compression: what gradients travel as
elastic      training goes on when a rank is lost

`hccl_py.horovod.keras` has DistributedOptimizer and the callbacks, also as `.tensorflow.keras`.
"""

from typing import Any

from hccl_py.horovod import without_tensors
from hccl_py.horovod.tensorflow import elastic
from hccl_py.horovod.tensorflow.calls import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from hccl_py.horovod.tensorflow.compression import Compression
from hccl_py.horovod.tensorflow.gradients import DistributedGradientTape
from hccl_py.horovod.without_tensors import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
__all__ += without_tensors.__all__


def DistributedOptimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
    """Return `hccl_py.horovod.keras.DistributedOptimizer` of an optimizer of Keras."""
    from hccl_py.horovod import keras

    return keras.DistributedOptimizer(optimizer, *args, **kwargs)
