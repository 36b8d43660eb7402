"""One rank that trains a model in one of the ways of `contenders`.

There is no `from __future__ import annotations`: DDP checks the annotations of communication hooks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers torch's "fake"

from benchmarks.overlap.contenders import Way
from benchmarks.overlap.models import Task, make_task
from hccl_py.bench.collective.contender import Endpoint, Timed
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.over_torch import TorchContender
from hccl_py.memory.registered import empty
from hccl_py.torch_backend.training.fast_ddp import fast_ddp

_CHECKED_STEPS = 2
_RATE, _MOMENTUM = 0.01, 0.9

Around = Callable[[], AbstractContextManager[object]]


class TrainingContender(TorchContender):
    """A process group, and one model at a time that trains over it.

    Attributes:
        step: one step of the training.
        gradients: an all_reduce of as many bytes as the gradients have.
        all_reduce: this call, bound to its buffers.
    """

    step: Timed
    gradients: Call
    all_reduce: Timed

    def __init__(self, way: Way, endpoint: Endpoint) -> None:
        """Make the process group."""
        super().__init__(way.backend, endpoint)
        self._way = way

    def train(self, model: str, batch: int) -> tuple[int, float]:
        """Make a model, and compare its first steps with those of one process on whole batches.

        Args:
            model: one of `MODELS`.
            batch: samples of each rank.

        Returns:
            Bytes of all gradients, and the largest difference of a parameter relative to the
            largest parameter: 0 for a silent contender, whose ranks train separately.
        """
        task = make_task(model, batch * self.world_size)
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        training = _Training(task, mine, *self._together(task))
        self.step = training.step
        num_elements = sum(one.numel() for one in task.model.parameters())
        # In one buffer, as fast_ddp has them.
        make = empty if self._way.model == "fast_ddp" else torch.empty
        gradients: Tensor = make(num_elements, dtype=torch.float32).zero_()
        self.gradients = Call(
            "all_reduce", self.world_size, 0, "avg", "float32", num_elements, in_place=True
        )
        self.all_reduce = self.bind(self.gradients, gradients, gradients)
        num_bytes = num_elements * gradients.itemsize
        if self._way.silent is None:
            return num_bytes, 0.0
        whole = make_task(model, batch * self.world_size)
        alone = _Training(whole, slice(None), whole.model, nullcontext)
        for _ in range(_CHECKED_STEPS):
            alone.step()
            training.step()
        pairs = zip(task.model.parameters(), alone.task.model.parameters(), strict=True)
        return num_bytes, max(_difference(*pair) for pair in pairs)

    def _together(self, task: Task) -> tuple[nn.Module, Around]:
        """Return the module that a step calls, and a function that makes the step's context."""
        model: Any = task.model
        is_silent = self._way.silent is None
        if self._way.model == "alone":
            return model, nullcontext
        if self._way.model == "fast_ddp":
            averaged = fast_ddp(model, self.group)
            return averaged, model.no_sync if is_silent else nullcontext
        if self._way.model == "fsdp2":
            # Named, because DTensor takes one of two equal meshes for the other.
            mesh = DeviceMesh.from_group(self.group, "cpu", mesh_dim_names=(self._way.backend,))
            for layer in task.layers:
                fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh), nullcontext
        averaged = DistributedDataParallel(model, process_group=self.group)
        if is_silent:
            averaged.register_comm_hook(None, _keep_bucket)
        return averaged, nullcontext


class _Training:
    """A model with its optimizer, on some rows of every batch."""

    def __init__(self, task: Task, rows: slice, called: nn.Module, around: Around) -> None:
        self.task = task
        self._called, self._around = called, around
        self._optimizer = torch.optim.SGD(task.model.parameters(), lr=_RATE, momentum=_MOMENTUM)
        self._batches = [(inputs[rows], targets[rows]) for inputs, targets in task.batches]
        self._done = 0

    def step(self) -> None:
        """Run one step as users write it."""
        inputs, targets = self._batches[self._done % len(self._batches)]
        self._done += 1
        with self._around():
            self._optimizer.zero_grad()
            cross_entropy(self._called(inputs), targets).backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()


def _keep_bucket(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Be a communication hook of DDP that averages nothing."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _difference(parameter: Tensor, expected: Tensor) -> float:
    with torch.no_grad():
        if isinstance(parameter, DTensor):
            parameter = parameter.full_tensor()
        largest = torch.maximum(expected.abs().max(), torch.tensor(1e-6))
        return float((parameter - expected).abs().max() / largest)
