"""Horovod's API over a Communicator: `import hccl_py.horovod.torch as hvd`.

This package itself has the calls on numpy arrays, and imports no framework.

torch/         the same for torch, DistributedOptimizer and what goes with it
tensorflow/    for TensorFlow; keras/: DistributedOptimizer and callbacks for Keras
world          init, shutdown, ranks; process_sets
reductions     ops and factors; handle: calls in the background
collectives    each collective once, on the arrays of any library (`arrays`)
array_calls    Horovod's signatures on numpy arrays; objects: any Python object; join
"""

from hccl_py.horovod.array_calls import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    grouped_allgather,
    grouped_allreduce,
    grouped_allreduce_async,
    reducescatter,
    reducescatter_async,
)
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
from hccl_py.horovod.errors import (
    HorovodInternalError,
)
from hccl_py.horovod.handle import (
    poll,
    synchronize,
)
from hccl_py.horovod.join import (
    join,
)
from hccl_py.horovod.objects import (
    allgather_object,
    broadcast_object,
)
from hccl_py.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hccl_py.horovod.reductions import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
)
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
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "synchronize",
]
