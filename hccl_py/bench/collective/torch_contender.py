"""A backend of torch.distributed as a contender, called as users call it."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from hccl_py.bench.collective.contender import Endpoint, Timed, Zeros
from hccl_py.bench.collective.output.counters import describe
from hccl_py.compression import VARIABLE


class TorchContender:
    """One process group; the first of a process is its default group."""

    def __init__(self, backend: str, endpoint: Endpoint) -> None:
        """Join the group; blocks until every rank is there."""
        self.zeros: Zeros = lambda count, dtype: torch.zeros(count, dtype=dtype)
        self.compression = os.environ.get(VARIABLE, "")
        timeout = timedelta(seconds=endpoint.timeout_s)
        self._rank, self._world_size = endpoint.rank, endpoint.world_size
        if dist.is_initialized():
            self._group = dist.new_group(backend=backend, timeout=timeout)
            return
        dist.init_process_group(
            backend,
            init_method=f"tcp://{endpoint.master_address}:{endpoint.master_port}",
            rank=endpoint.rank,
            world_size=endpoint.world_size,
            timeout=timeout,
        )
        self._group = dist.group.WORLD

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """See Contender."""
        target = data if output is None else output
        call = partial(dist.all_reduce, target, op=_op(reduce_op), group=self._group)
        return call if output is None else _after_copy(output, data, call)

    def broadcast(self, data: torch.Tensor, root: int, output: torch.Tensor | None = None) -> Timed:
        """See Contender."""
        target = data if output is None else output
        call = partial(dist.broadcast, target, src=root, group=self._group)
        return call if output is None or self._rank != root else _after_copy(output, data, call)

    def reduce(
        self, data: torch.Tensor, root: int, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """See Contender."""
        is_copied = output is not None and self._rank == root
        target = output if output is not None and is_copied else data
        call = partial(dist.reduce, target, dst=root, op=_op(reduce_op), group=self._group)
        return _after_copy(target, data, call) if is_copied else call

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        return partial(dist.all_gather_single, output, input, group=self._group)

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, reduce_op: str) -> Timed:
        """See Contender."""
        return partial(
            dist.reduce_scatter_single, output, input, op=_op(reduce_op), group=self._group
        )

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        return partial(dist.all_to_all_single, output, input, group=self._group)

    def gather(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """See Contender."""
        blocks = list(output.chunk(self._world_size)) if self._rank == root else None
        return partial(dist.gather, input, blocks, dst=root, group=self._group)

    def scatter(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """See Contender."""
        blocks = list(input.chunk(self._world_size)) if self._rank == root else None
        return partial(dist.scatter, output, blocks, src=root, group=self._group)

    def send_recv(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        group = self._group
        target, source = (self._rank + 1) % self._world_size, (self._rank - 1) % self._world_size

        def exchange() -> None:
            sending = dist.isend(input, target, group=group)
            dist.recv(output, source, group=group)
            if sending is not None:
                sending.wait()

        return exchange

    def send(self, data: torch.Tensor, peer: int) -> Timed:
        """See Contender."""
        return partial(dist.send, data, peer, group=self._group)

    def recv(self, data: torch.Tensor, peer: int) -> Timed:
        """See Contender."""
        return partial(dist.recv, data, peer, group=self._group)

    def barrier(self) -> Timed:
        """See Contender."""
        return partial(dist.barrier, group=self._group)

    def statistics(self) -> str | None:
        """See Contender."""
        count = getattr(self._group, "statistics", None)
        return describe(count()) if count else None

    def close(self) -> None:
        """See Contender."""
        dist.destroy_process_group(self._group)


def _after_copy(output: torch.Tensor, input: torch.Tensor, call: Timed) -> Timed:
    """Work out of place as a program has to that calls torch: these calls have no output."""

    def copy_and_call() -> None:
        output.copy_(input)
        call()

    return copy_and_call


def _op(name: str) -> dist.ReduceOp.RedOpType:
    op: dist.ReduceOp.RedOpType = getattr(dist.ReduceOp, name.upper())
    return op
