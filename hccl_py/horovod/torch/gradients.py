"""Reduces the gradients of a DistributedOptimizer while backward still runs.

Parameters are in buckets, those that backward reaches first in the first bucket. A bucket's
reduction starts when all its gradients are ready and all buckets before it have started, so the
order is the same on all ranks, even if autograd's order differs. `synchronize` starts the rest,
with zeros for gradients that this rank does not have.

Sparse and dense gradients are reduced by different calls. So the ranks agree on the kind of each
gradient of a bucket, in the first step in which a rank has that gradient.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hccl_py.communicator import Communicator
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.compression import Compressor, compressed
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.torch.calls import sparse_allreduce_async
from hccl_py.horovod.torch.tensors import IN_PLACE
from hccl_py.transport.types import ReduceOp

_BUCKET_BYTES = 4 << 20
_UNKNOWN, _DENSE = 0, 127
"""The kind of a gradient: not known to any rank yet, dense, or the number of its sparse dimensions.
The ranks use the largest of their kinds: one dense gradient makes all dense.
"""


@dataclass(eq=False)
class _Bucket:
    parameters: Sequence[Tensor]
    kinds: list[int] = field(default_factory=list)
    agreed_by: Communicator | None = None  # whose ranks agreed on the kinds
    num_ready: int = 0
    finish: Callable[[], None] | None = None  # once it has started


class GradientReducer:
    """Reduces the gradients of one optimizer on one rank."""

    def __init__(
        self,
        buckets: Iterable[Sequence[Tensor]],
        call: Reduce,
        compression: type[Compressor],
        sparse_as_dense: bool,
    ) -> None:
        """Hook into the parameters; buckets are the same, in the same order, on all ranks."""
        self._call, self._compression = call, compression
        self._sparse_as_dense = sparse_as_dense
        self._buckets = [_Bucket(parameters) for parameters in buckets if parameters]
        self._bucket_of = {each: it for it in self._buckets for each in it.parameters}
        self.set_passes_per_step(1)
        # Python does not collect a cycle through a hook of a tensor.
        reference = weakref.ref(self)

        def hook(parameter: Tensor) -> None:
            reducer = reference()
            if reducer is not None:
                reducer.take(parameter)

        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def set_passes_per_step(self, passes: int) -> None:
        """Reduce after every `passes` backward passes from now on."""
        self._passes_per_step = passes
        self.reset()

    def reset(self) -> None:
        """Discard the gradients since the last step, and the results of calls under way."""
        self._num_started = 0
        for bucket in self._buckets:
            bucket.num_ready, bucket.finish = 0, None
        self._passes_left = dict.fromkeys(self._bucket_of, self._passes_per_step)

    @property
    def is_pending(self) -> bool:
        """Whether backward has run since the last `synchronize`."""
        return any(left < self._passes_per_step for left in self._passes_left.values())

    def take(self, parameter: Tensor) -> None:
        """Count the gradient of a backward pass, and start the buckets that are complete."""
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        self._passes_left[parameter] -= 1
        if self._passes_left[parameter] == 0:
            self._bucket_of[parameter].num_ready += 1
            for bucket in self._buckets[self._num_started :]:
                if bucket.num_ready < len(bucket.parameters):
                    break
                self._start(bucket)

    def synchronize(self) -> None:
        """Reduce all gradients, and wait for them."""
        for bucket in self._buckets[self._num_started :]:
            self._start(bucket)
        for bucket in self._buckets:
            assert bucket.finish is not None
            bucket.finish()
        self.reset()

    def _start(self, bucket: _Bucket) -> None:
        self._num_started += 1
        gradients = self._gradients(bucket)
        dense, finishers = [], []
        for gradient in gradients:
            if gradient.is_sparse and not self._sparse_as_dense:
                finishers.append(self._start_sparse(gradient))
            else:
                dense.append(gradient)
        if dense:
            finishers.append(self._start_dense(dense))

        def finish() -> None:
            for each in finishers:
                each()

        bucket.finish = finish

    def _gradients(self, bucket: _Bucket) -> list[Tensor]:
        """Return a gradient for each parameter, of the kind that all ranks have."""
        if self._sparse_as_dense:
            kinds = [_kind(each.grad) for each in bucket.parameters]
        else:
            kinds = self._agreed_kinds(bucket)
        gradients = []
        for parameter, kind in zip(bucket.parameters, kinds, strict=True):
            if parameter.grad is None:  # other ranks may have one
                parameter.grad = _zeros(parameter, kind)
            elif _kind(parameter.grad) != kind:
                dense = parameter.grad.to_dense()
                parameter.grad = dense if kind == _DENSE else dense.to_sparse(kind)
            gradients.append(parameter.grad)
        return gradients

    def _agreed_kinds(self, bucket: _Bucket) -> list[int]:
        communicator = self._call.process_set.communicator
        if bucket.agreed_by is not communicator or _UNKNOWN in bucket.kinds:
            kinds = np.array([_kind(each.grad) for each in bucket.parameters], np.int8)
            with internal_errors():
                communicator.all_reduce(kinds, int(ReduceOp.MAX))
            bucket.kinds, bucket.agreed_by = kinds.tolist(), communicator
        return bucket.kinds

    def _start_dense(self, gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Start to reduce in place, small ones together."""
        dense = [each.to_dense() if each.is_sparse else each for each in gradients]
        to_send, restore = compressed(self._compression, dense)
        handle = self._call.start(IN_PLACE, to_send)

        def finish() -> None:
            for gradient, made in zip(gradients, restore(handle.wait()[0]), strict=True):
                if gradient.is_sparse:
                    gradient.copy_(made.to_sparse(gradient.sparse_dim()))
                elif made is not gradient:
                    gradient.copy_(made)

        return finish

    def _start_sparse(self, gradient: Tensor) -> Callable[[], None]:
        op, process_set = self._call.reduction.op, self._call.process_set
        wait = sparse_allreduce_async(gradient, op=op, process_set=process_set)

        def finish() -> None:
            gradient.copy_(wait())

        return finish


def _kind(gradient: Tensor | None) -> int:
    if gradient is None:
        return _UNKNOWN
    return gradient.sparse_dim() if gradient.is_sparse else _DENSE


def _zeros(parameter: Tensor, kind: int) -> Tensor:
    if kind in (_UNKNOWN, _DENSE):
        return torch.zeros_like(parameter, requires_grad=False)
    places = torch.empty(kind, 0, dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty(0, *parameter.shape[kind:])
    return torch.sparse_coo_tensor(places, values, parameter.shape, check_invariants=False)


def buckets_of(parameters: Sequence[Tensor]) -> list[list[Tensor]]:
    """Cut the parameters into buckets, the last parameters first, as backward reaches them."""
    buckets: list[list[Tensor]] = []
    room = 0
    for parameter in reversed(parameters):
        if room <= 0:
            buckets.append([])
            room = _BUCKET_BYTES
        buckets[-1].append(parameter)
        room -= parameter.nbytes
    return buckets
