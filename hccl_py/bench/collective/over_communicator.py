"""`hccl_py.Communicator` as a contender, without torch.distributed."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from hccl_py.bench.collective.contender import Endpoint, Timed, Zeros
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.output.counters import describe
from hccl_py.communicator import Communicator
from hccl_py.compression import VARIABLE
from hccl_py.transport.types import ReduceOp


class CommunicatorContender:
    """A communicator, called on numpy arrays or on bfloat16 tensors."""

    zeros: Zeros

    def __init__(self, communicator: Communicator) -> None:
        """Take over an open communicator."""
        self.compression = os.environ.get(VARIABLE, "")
        self.communicator = communicator

    @classmethod
    def open(cls, endpoint: Endpoint) -> CommunicatorContender:
        """Connect by the environment, as a program without torch does; blocks until all have."""
        os.environ["MASTER_ADDR"] = endpoint.master_address
        os.environ["MASTER_PORT"] = str(endpoint.master_port)
        return cls(Communicator(timeout_s=endpoint.timeout_s))

    def bind(self, call: Call, input: Any, output: Any) -> Timed:
        """See Contender."""
        comm, data, result = self.communicator, _array(input), _array(output)
        at_root = comm.rank == call.root
        op: Any = getattr(ReduceOp, call.reduce_op.upper(), None)
        into = {} if call.in_place else {"output": result}
        calls: dict[str, Timed] = {
            "all_reduce": partial(comm.all_reduce, data, op, **into),
            "broadcast": partial(comm.broadcast, data, call.root, **into),
            "reduce": partial(comm.reduce, data, call.root, op, **into),
            "all_gather": partial(comm.all_gather, result, data),
            "reduce_scatter": partial(comm.reduce_scatter, result, data, op),
            "all_to_all": partial(comm.all_to_all, result, data),
            "gather": partial(comm.gather, result if at_root else None, data, call.root),
            "scatter": partial(comm.scatter, result, data if at_root else None, call.root),
            "barrier": comm.barrier,
            "send": partial(comm.send, data, call.root),
            "recv": partial(comm.recv, data, call.root),
            "start_send": partial(comm.nonblocking.send, data, call.root),
        }
        return calls[call.op]

    def statistics(self) -> str | None:
        """See Contender."""
        return describe(self.communicator.statistics())

    def force(self, algorithms: str | None) -> None:
        """Use algorithms in the syntax of `HCCL_ALGORITHM` from now on; None: no longer."""
        chosen = None if algorithms is None else {"HCCL_ALGORITHM": algorithms}
        self.communicator._state.plans.choose_by(chosen)

    def close(self) -> None:
        """See Contender."""
        self.communicator.close()


def _array(buffer: Any) -> Any:
    """Return the same memory as a numpy array; a bfloat16 tensor, unknown to numpy, as it is."""
    if hasattr(buffer, "numpy") and "bfloat16" not in str(buffer.dtype):
        return buffer.numpy()
    return buffer
