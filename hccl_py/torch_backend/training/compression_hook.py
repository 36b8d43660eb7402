"""The hook with which DDP compresses its gradients between nodes.

    model = DistributedDataParallel(network)
    model.register_comm_hook(hccl_py.CompressionState("int8"), hccl_py.compression_hook)

Use it for training: the compression error of a bucket of gradients is added to the same bucket in
the next step. A communicator's own `compression` cannot do that, because it does not know which of
its calls reduce the same tensor.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from hccl_py.compression import ErrorFeedback, compression_named
from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.torch_backend.work import as_torch_error
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import HcclError, InvalidArgumentError
from hccl_py.transport.types import Compression, ReduceOp


class CompressionState:
    """The state of `compression_hook` for one model, kept between steps.

    Attributes:
        compression: `bf16` or `int8`.
        process_group: the model's group, of backend hccl; None: the default group.
        feedbacks: by index of a bucket, the addresses of its parameters, and its error.
    """

    def __init__(self, compression: str, process_group: dist.ProcessGroup | None = None) -> None:
        if compression_named(compression) is Compression.NONE:
            raise InvalidArgumentError("compression: expected bf16 or int8, got none")
        if not isinstance(process_group, dist.ProcessGroup | None):
            raise wrong("process_group", "an hccl group, or None", process_group)
        self.compression = compression
        self.process_group = process_group
        self.feedbacks: dict[int, tuple[tuple[int, ...], ErrorFeedback]] = {}

    def feedback(self, bucket: GradBucket) -> ErrorFeedback:
        """Return a bucket's feedback; a new one if DDP has changed its parameters."""
        parameters = tuple(parameter.data_ptr() for parameter in bucket.parameters())
        known = self.feedbacks.get(bucket.index())
        if known is None or known[0] != parameters:
            known = self.feedbacks[bucket.index()] = parameters, ErrorFeedback(self.compression)
        return known[1]


def compression_hook(state: CompressionState, bucket: GradBucket) -> Future[torch.Tensor]:
    """Average a bucket of gradients, compressed between nodes, with error feedback.

    Only float32 gradients on the CPU are compressed; others are averaged without. Each rank keeps
    one float32 per element of a bucket.

    Raises:
        InvalidArgumentError: the group is not an hccl group.
        DistBackendError: the communicator has failed.
    """
    if not isinstance(state, CompressionState):
        raise wrong("state", "a CompressionState", state)
    gradients = bucket.buffer()
    group = dist.group.WORLD if state.process_group is None else state.process_group
    part = backend_of(group)
    if part is None:
        raise InvalidArgumentError("compression_hook: expected an hccl group for the model")
    if gradients.device.type != "cpu" or gradients.dtype is not torch.float32:
        work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group, async_op=True)
        return _averaged(work)
    feedback = state.feedback(bucket)
    part.drain()
    try:
        calls = part.carrier().nonblocking
        native = calls.all_reduce(gradients, ReduceOp.AVG, compression=feedback)
    except HcclError as error:
        raise as_torch_error(error)  # noqa: B904  # it names its cause
    return _averaged(part.started(native, [gradients], part.lane))


def _averaged(work: Any) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = work.get_future().then(_only)
    return future


def _only(done: Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]
