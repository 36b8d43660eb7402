"""A backend of torch.distributed as a contender, called as users call it."""

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from hccl_py.bench.collective.contender import Endpoint, Timed, Zeros
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.output.counters import describe
from hccl_py.compression import VARIABLE


class TorchContender:
    """One process group; the first of a process is its default group."""

    zeros: Zeros

    def __init__(self, backend: str, endpoint: Endpoint) -> None:
        """Make the group; blocks until every rank has."""
        self.compression = os.environ.get(VARIABLE, "")
        timeout = timedelta(seconds=endpoint.timeout_s)
        self.rank, self.world_size = endpoint.rank, endpoint.world_size
        if dist.is_initialized():
            self.group = dist.new_group(backend=backend, timeout=timeout)
            return
        dist.init_process_group(
            backend,
            init_method=f"tcp://{endpoint.master_address}:{endpoint.master_port}",
            rank=endpoint.rank,
            world_size=endpoint.world_size,
            timeout=timeout,
        )
        self.group = dist.group.WORLD

    def bind(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> Timed:
        """See Contender."""
        group, at_root, root = self.group, self.rank == call.root, call.root
        op: Any = getattr(dist.ReduceOp, call.reduce_op.upper(), None)
        # These calls of torch have one buffer: a program that works out of place copies first.
        copies = not call.in_place and (at_root or call.op == "all_reduce")
        data = output if not call.in_place and (copies or call.op == "broadcast") else input

        def blocks(whole: torch.Tensor) -> list[torch.Tensor] | None:
            return list(whole.chunk(self.world_size)) if at_root else None

        def on_one_buffer(function: Callable[..., object], **keywords: Any) -> Timed:
            timed = partial(function, data, group=group, **keywords)
            return partial(_copy_and_call, output, input, timed) if copies else timed

        makers: dict[str, Callable[[], Timed]] = {
            "all_reduce": lambda: on_one_buffer(dist.all_reduce, op=op),
            "broadcast": lambda: on_one_buffer(dist.broadcast, src=root),
            "reduce": lambda: on_one_buffer(dist.reduce, dst=root, op=op),
            "all_gather": lambda: partial(dist.all_gather_single, output, input, group=group),
            "reduce_scatter": lambda: partial(
                dist.reduce_scatter_single, output, input, op=op, group=group
            ),
            "all_to_all": lambda: partial(dist.all_to_all_single, output, input, group=group),
            "gather": lambda: partial(dist.gather, input, blocks(output), dst=root, group=group),
            "scatter": lambda: partial(dist.scatter, output, blocks(input), src=root, group=group),
            "barrier": lambda: partial(dist.barrier, group=group),
            "send": lambda: partial(dist.send, input, root, group=group),
            "recv": lambda: partial(dist.recv, input, root, group=group),
            "start_send": lambda: partial(dist.isend, input, root, group=group),
        }
        return makers[call.op]()

    def statistics(self) -> str | None:
        """See Contender."""
        count = getattr(self.group, "statistics", None)
        return describe(count()) if count else None

    def close(self) -> None:
        """See Contender."""
        dist.destroy_process_group(self.group)


def _copy_and_call(output: torch.Tensor, input: torch.Tensor, call: Timed) -> None:
    output.copy_(input)
    call()
