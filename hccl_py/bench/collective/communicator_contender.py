"""`hccl_py.Communicator` as a contender, on numpy arrays, without torch.distributed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch

from hccl_py.bench.collective.contender import Endpoint, Timed, Zeros
from hccl_py.bench.collective.messages import Counted
from hccl_py.bench.collective.output.counters import describe
from hccl_py.communicator import Communicator
from hccl_py.compression import VARIABLE
from hccl_py.transport.types import ReduceOp


class CommunicatorContender:
    """A communicator made from the environment, as a program without torch would make it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Join the communicator; blocks until every rank is there."""
        self.zeros: Zeros = lambda count, dtype: torch.zeros(count, dtype=dtype)
        self.compression = os.environ.get(VARIABLE, "")
        os.environ["MASTER_ADDR"] = endpoint.master_address
        os.environ["MASTER_PORT"] = str(endpoint.master_port)
        self.communicator = Communicator(timeout_s=endpoint.timeout_s)

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """See Contender."""
        call = self.communicator.all_reduce
        return partial(call, _array(data), _op(reduce_op), **_into(output))

    def broadcast(self, data: torch.Tensor, root: int, output: torch.Tensor | None = None) -> Timed:
        """See Contender."""
        return partial(self.communicator.broadcast, _array(data), root, **_into(output))

    def reduce(
        self, data: torch.Tensor, root: int, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """See Contender."""
        call = self.communicator.reduce
        return partial(call, _array(data), root, _op(reduce_op), **_into(output))

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        return partial(self.communicator.all_gather, _array(output), _array(input))

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, reduce_op: str) -> Timed:
        """See Contender."""
        call = self.communicator.reduce_scatter
        return partial(call, _array(output), _array(input), _op(reduce_op))

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        return partial(self.communicator.all_to_all, _array(output), _array(input))

    def gather(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """See Contender."""
        blocks = _array(output) if self.communicator.rank == root else None
        return partial(self.communicator.gather, blocks, _array(input), root)

    def scatter(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """See Contender."""
        blocks = _array(input) if self.communicator.rank == root else None
        return partial(self.communicator.scatter, _array(output), blocks, root)

    def send_recv(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """See Contender."""
        communicator, into, out_of = self.communicator, _array(output), _array(input)
        target = (communicator.rank + 1) % communicator.world_size
        source = (communicator.rank - 1) % communicator.world_size

        def exchange() -> None:
            sending = communicator.nonblocking.send(out_of, target)
            communicator.recv(into, source)
            sending.wait()

        return exchange

    def send(self, data: torch.Tensor, peer: int) -> Timed:
        """See Contender."""
        return partial(self.communicator.send, _array(data), peer)

    def recv(self, data: torch.Tensor, peer: int) -> Timed:
        """See Contender."""
        return partial(self.communicator.recv, _array(data), peer)

    def barrier(self) -> Timed:
        """See Contender."""
        return partial(self.communicator.barrier)

    def statistics(self) -> str | None:
        """See Contender."""
        return describe(self.communicator.statistics())

    def force(self, algorithms: str) -> None:
        """Have the calls from now on run these algorithms, named as for `HCCL_ALGORITHM`."""
        self.communicator._state.plans.choose_by({"HCCL_ALGORITHM": algorithms})

    def start_profile(self) -> None:
        """Have the engine time the parts of its collectives from now on."""
        self.communicator._state.core.start_profile()

    def counted(self) -> Counted:
        """Return what the engine has counted so far."""
        late_and_moving = self.communicator.statistics()
        parts_ns = self.communicator._state.core.profile()
        seconds = (ns / 1e9 for ns in parts_ns)
        return Counted(late_and_moving["waiting_s"], late_and_moving["moving_s"], *seconds)

    def close(self) -> None:
        """See Contender."""
        self.communicator.close()


def _array(tensor: torch.Tensor) -> Any:
    """The same memory as a numpy array; numpy has no bfloat16, that stays a tensor."""
    return tensor if tensor.dtype is torch.bfloat16 else tensor.numpy()


def _into(output: torch.Tensor | None) -> dict[str, Any]:
    return {} if output is None else {"output": _array(output)}


def _op(name: str) -> ReduceOp:
    return ReduceOp[name.upper()]
