"""One rank that trains a model in one of the ways of `contenders`."""

import contextlib
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.overlap.contenders import CONTENDERS
from benchmarks.overlap.models import Digits, Task, digits_task, transformer_task
from hccl_py.bench.collective.contender import Endpoint, Timed
from hccl_py.bench.collective.torch_contender import TorchContender
from hccl_py.memory.registered import empty
from hccl_py.torch_backend.fast_ddp import fast_ddp

_CHECKED_STEPS = 2
_RATE, _MOMENTUM = 0.01, 0.9


class TrainingContender(TorchContender):
    """A process group, and one model at a time that is trained over it."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        """Join a group of its own; `name` is one of `CONTENDERS`."""
        self._name, self._way = name, CONTENDERS[name]
        super().__init__(self._way.backend, endpoint)

    def prepare(self, model: str, batch: int, data: Digits) -> tuple[int, float]:
        """Make a model, and compare its first steps with those of one process on whole batches.

        Args:
            model: one of `MODELS`.
            batch: samples of each rank.
            data: for the digits.

        Returns:
            Bytes of all gradients; the largest difference of a parameter, relative to the largest
            parameter; 0 of a silent contender, whose ranks learn on their own.
        """
        whole = batch * self._world_size
        alone = _Training(_task(model, whole, data), slice(None))
        task = _task(model, whole, data)
        mine = slice(self._rank * batch, (self._rank + 1) * batch)
        called = self._averaged(task.model)
        self._training = _Training(task, mine, called)
        self._step: Timed = self._training.step
        if self._name == "silent_fast_ddp":
            no_sync: Any = task.model.no_sync
            self._step = _inside(no_sync, self._step)
        num_elements = sum(one.numel() for one in task.model.parameters())
        # As fast_ddp has them: in one buffer.
        make = empty if self._name == "fast_ddp" else torch.empty
        gradients: Tensor = make(num_elements, dtype=torch.float32)
        self._all_reduce = self.all_reduce(gradients.zero_(), "avg")
        self._barrier = self.barrier()
        if self._way.silent is None:
            return num_elements * gradients.itemsize, 0.0
        for _ in range(_CHECKED_STEPS):
            alone.step()
            self._training.step()
        pairs = zip(task.model.parameters(), alone.task.model.parameters(), strict=True)
        return num_elements * gradients.itemsize, max(_difference(*pair) for pair in pairs)

    def _averaged(self, model: nn.Module) -> nn.Module:
        if self._name == "none":
            return model
        if self._name in ("fast_ddp", "silent_fast_ddp"):
            return fast_ddp(model, self._group)
        averaged = DistributedDataParallel(model, process_group=self._group)
        if self._name == "silent_ddp":
            averaged.register_comm_hook(None, _keep_bucket)
        return averaged

    def time_steps(self, warmup: int, steps: int) -> list[float]:
        """Train; return the seconds of each step after the first `warmup` ones."""
        return self._timed(self._step, warmup, steps)

    def time_all_reduces(self, calls: int) -> list[float]:
        """Return the seconds of each all_reduce of as many bytes as there are gradients."""
        return self._timed(self._all_reduce, 1, calls)

    def _timed(self, call: Timed, warmup: int, calls: int) -> list[float]:
        self._barrier()
        for _ in range(warmup):
            call()
        clock, times = time.perf_counter, []
        gc.disable()
        for _ in range(calls):
            begin = clock()
            call()
            times.append(clock() - begin)
        gc.enable()
        return times


class _Training:
    """A model with its optimizer, on some rows of every batch."""

    def __init__(self, task: Task, rows: slice, called: nn.Module | None = None) -> None:
        self.task = task
        self._called = called or task.model
        self._optimizer = torch.optim.SGD(task.model.parameters(), lr=_RATE, momentum=_MOMENTUM)
        self._batches = [(inputs[rows], targets[rows]) for inputs, targets in task.batches]
        self._done = 0

    def step(self) -> None:
        """Take the step that users write."""
        inputs, targets = self._batches[self._done % len(self._batches)]
        self._done += 1
        self._optimizer.zero_grad()
        cross_entropy(self._called(inputs), targets).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()


def _keep_bucket(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Average nothing, as a communication hook of DDP."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _inside(context: Callable[[], contextlib.AbstractContextManager[object]], step: Timed) -> Timed:
    def call() -> None:
        with context():
            step()

    return call


def _task(model: str, batch: int, data: Digits) -> Task:
    return digits_task(batch, data) if model == "digits" else transformer_task(batch)


def _difference(parameter: Tensor, expected: Tensor) -> float:
    with torch.no_grad():
        largest = torch.maximum(expected.abs().max(), torch.tensor(1e-6))
        return float((parameter - expected).abs().max() / largest)
