"""Horovod's API for torch: `import hccl_py.horovod.torch as hvd`.

calls              runs the collectives on tensors, with gradients
optimizer          DistributedOptimizer; gradients: when it reduces them
broadcast_state    all ranks begin with the parameters of one
elastic, sampler   training that continues when a rank is lost
sync_batch_norm, tensors
"""

from torch import Tensor as _Tensor

from hccl_py.horovod.calls import Calls as _Calls
from hccl_py.horovod.handle import poll as poll
from hccl_py.horovod.handle import synchronize as synchronize
from hccl_py.horovod.torch import elastic as elastic
from hccl_py.horovod.torch.broadcast_state import (
    broadcast_optimizer_state as broadcast_optimizer_state,
)
from hccl_py.horovod.torch.broadcast_state import broadcast_parameters as broadcast_parameters
from hccl_py.horovod.torch.calls import received as _received
from hccl_py.horovod.torch.calls import run as _run
from hccl_py.horovod.torch.calls import sparse_allreduce_async as sparse_allreduce_async
from hccl_py.horovod.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from hccl_py.horovod.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from hccl_py.horovod.torch.tensors import IN_PLACE as _IN_PLACE
from hccl_py.horovod.torch.tensors import TENSORS as _TENSORS
from hccl_py.horovod.torch.tensors import Compression as Compression
from hccl_py.horovod.without_tensors import *  # noqa: F403

_new = _Calls(__name__, _Tensor, _Tensor, _TENSORS, _run, _received)
_same = _Calls(__name__, _Tensor, _Tensor, _IN_PLACE)

allreduce = _new("allreduce")
allreduce_ = _same("allreduce_")
allreduce_async = _new("allreduce_async")
allreduce_async_ = _same("allreduce_async_")
grouped_allreduce = _new("grouped_allreduce")
grouped_allreduce_ = _same("grouped_allreduce_")
grouped_allreduce_async = _new("grouped_allreduce_async")
grouped_allreduce_async_ = _same("grouped_allreduce_async_")
allgather = _new("allgather")
allgather_async = _new("allgather_async")
grouped_allgather = _new("grouped_allgather")
grouped_allgather_async = _new("grouped_allgather_async")
broadcast = _new("broadcast")
broadcast_ = _same("broadcast_")
broadcast_async = _new("broadcast_async")
broadcast_async_ = _same("broadcast_async_")
reducescatter = _new("reducescatter")
reducescatter_async = _new("reducescatter_async")
grouped_reducescatter = _new("grouped_reducescatter")
grouped_reducescatter_async = _new("grouped_reducescatter_async")
alltoall = _new("alltoall")
alltoall_async = _new("alltoall_async")
