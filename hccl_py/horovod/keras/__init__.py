"""Horovod's API for Keras 3 on TensorFlow: `import hccl_py.horovod.keras as hvd`.

optimizer    DistributedOptimizer
callbacks    for model.fit: broadcast, averages of metrics, learning rates
elastic      training that continues when a rank is lost

It imports no torch. Its allreduce, allgather and broadcast take and return numpy arrays.
"""

from hccl_py.horovod import allgather as allgather
from hccl_py.horovod import allreduce as allreduce
from hccl_py.horovod import broadcast as broadcast
from hccl_py.horovod import reducescatter as reducescatter
from hccl_py.horovod.keras import callbacks as callbacks
from hccl_py.horovod.keras import elastic as elastic
from hccl_py.horovod.keras.optimizer import DistributedOptimizer as DistributedOptimizer
from hccl_py.horovod.keras.optimizer import load_model as load_model
from hccl_py.horovod.tensorflow.calls import Compression as Compression
from hccl_py.horovod.tensorflow.calls import broadcast_variables as broadcast_variables
from hccl_py.horovod.without_tensors import *  # noqa: F403
