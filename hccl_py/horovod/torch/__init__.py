"""Horovod's API for torch: `import hccl_py.horovod.torch as hvd`.

calls              runs the collectives on tensors, with gradients
optimizer          DistributedOptimizer; gradients: when it reduces them
broadcast_state    all ranks begin with the parameters of one
elastic, sampler   training goes on when a rank is lost
sync_batch_norm, tensors
"""

from torch import Tensor as _Tensor

from hccl_py.horovod import signatures as _rows
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

_new = _Calls[_Tensor, _Tensor](__name__, _Tensor, _Tensor, _TENSORS, _run, _received)
_same = _Calls[_Tensor, _Tensor](__name__, _Tensor, _Tensor, _IN_PLACE)

allreduce = _new.one("allreduce", _rows.compressed_allreduce)
allreduce_ = _same.one("allreduce_", _rows.allreduce)
allreduce_async = _new.one_async("allreduce_async", _rows.allreduce)
allreduce_async_ = _same.one_async("allreduce_async_", _rows.allreduce)
grouped_allreduce = _new.many("grouped_allreduce", _rows.compressed_allreduce)
grouped_allreduce_ = _same.many("grouped_allreduce_", _rows.allreduce)
grouped_allreduce_async = _new.many_async("grouped_allreduce_async", _rows.allreduce)
grouped_allreduce_async_ = _same.many_async("grouped_allreduce_async_", _rows.allreduce)
allgather = _new.one("allgather", _rows.allgather)
allgather_async = _new.one_async("allgather_async", _rows.allgather)
grouped_allgather = _new.many("grouped_allgather", _rows.allgather)
grouped_allgather_async = _new.many_async("grouped_allgather_async", _rows.allgather)
broadcast = _new.one("broadcast", _rows.broadcast)
broadcast_ = _same.one("broadcast_", _rows.broadcast)
broadcast_async = _new.one_async("broadcast_async", _rows.broadcast)
broadcast_async_ = _same.one_async("broadcast_async_", _rows.broadcast)
reducescatter = _new.one("reducescatter", _rows.compressed_reducescatter)
reducescatter_async = _new.one_async("reducescatter_async", _rows.reducescatter)
grouped_reducescatter = _new.many("grouped_reducescatter", _rows.compressed_reducescatter)
grouped_reducescatter_async = _new.many_async("grouped_reducescatter_async", _rows.reducescatter)
alltoall = _new.exchange("alltoall", _rows.alltoall)
alltoall_async = _new.exchange_async("alltoall_async", _rows.alltoall)
