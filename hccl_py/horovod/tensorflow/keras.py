"""Horovod's API for tf.keras, which is Keras 3: the names of `hccl_py.horovod.keras`."""

from hccl_py.horovod.keras import *  # noqa: F403
from hccl_py.horovod.keras import callbacks as callbacks
from hccl_py.horovod.keras import elastic as elastic
