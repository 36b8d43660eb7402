"""Horovod's API for Keras 3 on TensorFlow: `import hccl_py.horovod.keras as hvd`.

optimizer    DistributedOptimizer
callbacks    for model.fit: broadcast, averages of metrics, learning rates
elastic      training goes on when a rank is lost

It imports no torch. Its allreduce, allgather and broadcast take and return numpy arrays.
"""

from collections.abc import Sequence
from typing import Any

import keras

from hccl_py.horovod import without_tensors
from hccl_py.horovod.array_calls import allgather, allreduce, broadcast, reducescatter
from hccl_py.horovod.compression import Compressor
from hccl_py.horovod.keras import callbacks, elastic
from hccl_py.horovod.keras.optimizer import DistributedOptimizer
from hccl_py.horovod.tensorflow.calls import broadcast_variables
from hccl_py.horovod.tensorflow.compression import Compression
from hccl_py.horovod.without_tensors import *  # noqa: F403

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += without_tensors.__all__


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
