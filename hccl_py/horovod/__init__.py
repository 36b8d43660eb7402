"""Horovod's API over a Communicator: `import hccl_py.horovod.torch as hvd`.

This package has the calls on numpy arrays, and on objects that numpy converts to arrays. It imports
no framework: a framework without a module here passes its arrays and gets numpy's.

torch/         for torch: the same calls, DistributedOptimizer, elastic training
tensorflow/    for TensorFlow; keras/: DistributedOptimizer and callbacks for Keras
world          init, shutdown, ranks; process_sets
reductions     ops and factors; compression; handle: calls in the background
collectives/   each collective and its gradient, for the arrays of any library
signatures     Horovod's arguments; calls: makes the functions
objects        any Python object; join; without_tensors: names that all libraries share
"""

import numpy as _np
import numpy.typing as _npt

from hccl_py.horovod.calls import Calls as _Calls
from hccl_py.horovod.collectives.arrays import ARRAYS as _ARRAYS
from hccl_py.horovod.handle import poll as poll
from hccl_py.horovod.handle import synchronize as synchronize
from hccl_py.horovod.without_tensors import *  # noqa: F403

_calls = _Calls(__name__, _npt.ArrayLike, _np.ndarray, _ARRAYS)

allreduce = _calls("allreduce")
allreduce_async = _calls("allreduce_async")
grouped_allreduce = _calls("grouped_allreduce")
grouped_allreduce_async = _calls("grouped_allreduce_async")
allgather = _calls("allgather")
allgather_async = _calls("allgather_async")
grouped_allgather = _calls("grouped_allgather")
grouped_allgather_async = _calls("grouped_allgather_async")
broadcast = _calls("broadcast")
broadcast_async = _calls("broadcast_async")
reducescatter = _calls("reducescatter")
reducescatter_async = _calls("reducescatter_async")
grouped_reducescatter = _calls("grouped_reducescatter")
grouped_reducescatter_async = _calls("grouped_reducescatter_async")
alltoall = _calls("alltoall")
alltoall_async = _calls("alltoall_async")
