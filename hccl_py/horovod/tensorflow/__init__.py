"""Horovod's API for TensorFlow 2: `import hccl_py.horovod.tensorflow as hvd`. It imports no torch.

calls        runs the collectives on tensors, with gradients
gradients    DistributedGradientTape
elastic      training that continues when a rank is lost

`hccl_py.horovod.keras` has DistributedOptimizer and the callbacks, also as `.tensorflow.keras`.
"""

from typing import Any as _Any

import tensorflow as _tf

from hccl_py.horovod.calls import Calls as _Calls
from hccl_py.horovod.collectives.arrays import ARRAYS as _ARRAYS
from hccl_py.horovod.signatures import ORDER_IN_TENSORFLOW as _ORDERS
from hccl_py.horovod.tensorflow import elastic as elastic
from hccl_py.horovod.tensorflow.calls import Compression as Compression
from hccl_py.horovod.tensorflow.calls import broadcast_variables as broadcast_variables
from hccl_py.horovod.tensorflow.calls import received as _received
from hccl_py.horovod.tensorflow.calls import run as _run
from hccl_py.horovod.tensorflow.gradients import DistributedGradientTape as DistributedGradientTape
from hccl_py.horovod.without_tensors import *  # noqa: F403

_calls = _Calls(__name__, _tf.Tensor, _tf.Tensor, _ARRAYS, _run, _received, _ORDERS)

allreduce = _calls("allreduce")
grouped_allreduce = _calls("grouped_allreduce")
allgather = _calls("allgather")
grouped_allgather = _calls("grouped_allgather")
broadcast = _calls("broadcast")
reducescatter = _calls("reducescatter")
grouped_reducescatter = _calls("grouped_reducescatter")
alltoall = _calls("alltoall")


def DistributedOptimizer(optimizer: _Any, *args: _Any, **kwargs: _Any) -> _Any:  # noqa: N802
    """Return `hccl_py.horovod.keras.DistributedOptimizer` of an optimizer of Keras."""
    from hccl_py.horovod import keras

    return keras.DistributedOptimizer(optimizer, *args, **kwargs)
