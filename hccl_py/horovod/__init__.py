"""Horovod's API over a Communicator: `import hccl_py.horovod.torch as hvd`.

This package itself has the calls on numpy arrays, and imports no framework.

torch/         the same for torch, DistributedOptimizer and what goes with it
tensorflow/    for TensorFlow; keras/: DistributedOptimizer and callbacks for Keras
world          init, shutdown, ranks; process_sets
reductions     ops and factors; compression; handle: calls in the background
collectives/   each collective and its gradient once, on the arrays of any library
calls          Horovod's signatures once; array_calls: on numpy arrays
objects        any Python object; join; without_tensors: names that torch and others have too
"""

from hccl_py.horovod import without_tensors
from hccl_py.horovod.array_calls import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
)
from hccl_py.horovod.handle import poll, synchronize
from hccl_py.horovod.without_tensors import *  # noqa: F403

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
__all__ += without_tensors.__all__
