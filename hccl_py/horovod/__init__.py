"""Horovod's API over a Communicator: `import hccl_py.horovod.torch as hvd`.

This package itself has the calls on numpy arrays, and on whatever numpy makes an array of. It
imports no framework: frameworks that have no module here give it their arrays and get numpy's.

torch/         the same for torch, DistributedOptimizer and what goes with it
tensorflow/    for TensorFlow; keras/: DistributedOptimizer and callbacks for Keras
world          init, shutdown, ranks; process_sets
reductions     ops and factors; compression; handle: calls in the background
collectives/   each collective and its gradient once, on the arrays of any library
signatures     Horovod's arguments, once; calls makes the functions
objects        any Python object; join; without_tensors: names that torch and others have too
"""

from typing import Any as _Any

import numpy as _np
import numpy.typing as _npt

from hccl_py.horovod import signatures as _rows
from hccl_py.horovod.calls import Calls as _Calls
from hccl_py.horovod.collectives.arrays import ARRAYS as _ARRAYS
from hccl_py.horovod.handle import poll as poll
from hccl_py.horovod.handle import synchronize as synchronize
from hccl_py.horovod.without_tensors import *  # noqa: F403

_calls = _Calls[_npt.ArrayLike, _npt.NDArray[_Any]](__name__, _npt.ArrayLike, _np.ndarray, _ARRAYS)

allreduce = _calls.one("allreduce", _rows.allreduce)
allreduce_async = _calls.one_async("allreduce_async", _rows.allreduce)
grouped_allreduce = _calls.many("grouped_allreduce", _rows.allreduce)
grouped_allreduce_async = _calls.many_async("grouped_allreduce_async", _rows.allreduce)
allgather = _calls.one("allgather", _rows.allgather)
allgather_async = _calls.one_async("allgather_async", _rows.allgather)
grouped_allgather = _calls.many("grouped_allgather", _rows.allgather)
grouped_allgather_async = _calls.many_async("grouped_allgather_async", _rows.allgather)
broadcast = _calls.one("broadcast", _rows.broadcast)
broadcast_async = _calls.one_async("broadcast_async", _rows.broadcast)
reducescatter = _calls.one("reducescatter", _rows.reducescatter)
reducescatter_async = _calls.one_async("reducescatter_async", _rows.reducescatter)
grouped_reducescatter = _calls.many("grouped_reducescatter", _rows.reducescatter)
grouped_reducescatter_async = _calls.many_async("grouped_reducescatter_async", _rows.reducescatter)
alltoall = _calls.exchange("alltoall", _rows.alltoall)
alltoall_async = _calls.exchange_async("alltoall_async", _rows.alltoall)
