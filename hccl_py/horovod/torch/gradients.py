"""Reduces the gradients of a DistributedOptimizer while backward still runs.

Parameters are in buckets, those that backward reaches first in the first bucket. A bucket's
reduction starts when all its gradients are there and all buckets before it have started: so the
order is the same on all ranks, whatever order autograd has there. `synchronize` starts the rest,
with zeros for gradients that this rank does not have.

A sparse gradient is reduced by other calls than a dense one. So the ranks agree on what each
gradient of a bucket is, at the first step in which some rank has it.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hccl_py.communicator import Communicator
from hccl_py.horovod.collectives.reduce import Reduce
from hccl_py.horovod.compression import Compressor, compressed
from hccl_py.horovod.errors import internal_errors
from hccl_py.horovod.process_sets import ProcessSet
from hccl_py.horovod.reductions import Reduction
from hccl_py.horovod.torch.calls import sparse_allreduce_async
from hccl_py.horovod.torch.tensors import IN_PLACE
from hccl_py.transport.types import ReduceOp

_BUCKET_BYTES = 4 << 20
_UNKNOWN, _DENSE = 0, 127
"""What a gradient is: one that no rank had yet, a dense one, or the number of dimensions in which
it is sparse. The largest of all ranks' numbers holds: one dense gradient makes all ranks' dense.
"""


@dataclass(frozen=True)
class Settings:
    """How gradients are reduced; the names are those of DistributedOptimizer."""

    reduction: Reduction
    compression: type[Compressor]
    process_set: ProcessSet
    sparse_as_dense: bool


@dataclass(eq=False)
class _Bucket:
    parameters: Sequence[Tensor]
    kinds: list[int]
    agreed_by: Communicator | None = None  # whose ranks agreed on the kinds
    num_ready: int = 0
    finish: Callable[[], None] | None = None  # once it has started


@dataclass(eq=False)
class _Gradient:
    bucket: _Bucket
    passes_left: int = field(default=0)


class GradientReducer:
    """Of one optimizer on one rank."""

    def __init__(
        self, buckets: Iterable[Sequence[Tensor]], settings: Settings, passes_per_step: int
    ) -> None:
        """Hook into the parameters; buckets are the same, in the same order, on all ranks."""
        self._settings = settings
        self._buckets = [_Bucket(parameters, []) for parameters in buckets if parameters]
        self._gradients = {
            each: _Gradient(bucket) for bucket in self._buckets for each in bucket.parameters
        }
        self._num_started = 0
        self.set_passes_per_step(passes_per_step)
        # Python does not collect a cycle through a hook of a tensor.
        reference = weakref.ref(self)
        for parameter in self._gradients:
            parameter.register_post_accumulate_grad_hook(_hook(reference))  # type: ignore[no-untyped-call]

    def set_passes_per_step(self, passes: int) -> None:
        """Reduce after so many backward passes, beginning now."""
        self._passes_per_step = passes
        self.reset()

    def reset(self) -> None:
        """Forget what backward has brought since the last step. Calls under way end unseen."""
        self._num_started = 0
        for bucket in self._buckets:
            bucket.num_ready, bucket.finish = 0, None
        for gradient in self._gradients.values():
            gradient.passes_left = self._passes_per_step

    @property
    def is_pending(self) -> bool:
        """Whether backward has brought gradients that `synchronize` has not been called for."""
        return any(each.passes_left < self._passes_per_step for each in self._gradients.values())

    def take(self, parameter: Tensor) -> None:
        """Count the gradient of a backward pass, and start what is complete."""
        gradient = self._gradients[parameter]
        if gradient.passes_left <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to "
                "step(). Increase backward_passes_per_step to accumulate gradients locally."
            )
        gradient.passes_left -= 1
        if gradient.passes_left == 0:
            gradient.bucket.num_ready += 1
            while self._num_started < len(self._buckets):
                bucket = self._buckets[self._num_started]
                if bucket.num_ready < len(bucket.parameters):
                    break
                self._start(bucket)

    def synchronize(self) -> None:
        """Have all gradients reduced."""
        for bucket in self._buckets[self._num_started :]:
            self._start(bucket)
        for bucket in self._buckets:
            assert bucket.finish is not None, "all were started"
            bucket.finish()
        self.reset()

    def _start(self, bucket: _Bucket) -> None:
        self._num_started += 1
        dense: list[Tensor] = []
        converted: list[tuple[Tensor, Tensor]] = []
        finishers: list[Callable[[], None]] = []
        if not self._settings.sparse_as_dense:
            self._agree(bucket)
        for index, parameter in enumerate(bucket.parameters):
            kind = _DENSE if self._settings.sparse_as_dense else bucket.kinds[index]
            if parameter.grad is None:  # other ranks may have one
                parameter.grad = _zeros(parameter, kind)
            elif not self._settings.sparse_as_dense:
                parameter.grad = _converted(parameter.grad, kind)
            gradient = parameter.grad
            if gradient.is_sparse and not self._settings.sparse_as_dense:
                finishers.append(self._start_sparse(gradient))
                continue
            dense.append(gradient.to_dense() if gradient.is_sparse else gradient)
            if gradient.is_sparse:
                converted.append((gradient, dense[-1]))
        if dense:
            finishers.append(self._start_dense(dense))

        def finish() -> None:
            for each in finishers:
                each()
            for gradient, whole in converted:
                gradient.copy_(whole.to_sparse(gradient.sparse_dim()))

        bucket.finish = finish

    def _agree(self, bucket: _Bucket) -> None:
        communicator = self._settings.process_set.communicator
        if bucket.agreed_by is communicator and _UNKNOWN not in bucket.kinds:
            return
        kinds = np.array([_kind(each.grad) for each in bucket.parameters], np.int8)
        with internal_errors():
            communicator.all_reduce(kinds, int(ReduceOp.MAX))
        bucket.kinds, bucket.agreed_by = kinds.tolist(), communicator

    def _start_dense(self, gradients: Sequence[Tensor]) -> Callable[[], None]:
        """Start to reduce in place, the small ones together."""
        settings = self._settings
        travelling, restore = compressed(settings.compression, gradients)
        call = Reduce(settings.reduction, settings.process_set)
        handle = call.start(IN_PLACE, travelling)

        def finish() -> None:
            for gradient, restored in zip(gradients, restore(handle.wait()[0]), strict=True):
                if restored is not gradient:
                    gradient.copy_(restored)

        return finish

    def _start_sparse(self, gradient: Tensor) -> Callable[[], None]:
        settings = self._settings
        wait = sparse_allreduce_async(
            gradient, op=settings.reduction.op, process_set=settings.process_set
        )

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


def _converted(gradient: Tensor, kind: int) -> Tensor:
    if _kind(gradient) == kind:
        return gradient
    dense = gradient.to_dense()
    return dense if kind == _DENSE else dense.to_sparse(kind)


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


def _hook(reference: "weakref.ref[GradientReducer]") -> Callable[[Any], None]:
    def take(parameter: Tensor) -> None:
        reducer = reference()
        if reducer is not None:
            reducer.take(parameter)

    return take
