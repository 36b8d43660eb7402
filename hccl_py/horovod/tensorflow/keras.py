"""What Horovod has for tf.keras, which is Keras 3: `import hccl_py.horovod.tensorflow.keras`."""

from hccl_py.horovod.keras import *  # noqa: F403
from hccl_py.horovod.keras import callbacks as callbacks
from hccl_py.horovod.keras import elastic as elastic
