"""Contenders with one fault each, over gloo. Rank processes import this module by name."""

import os
import signal
import sys
import threading
from pathlib import Path

import torch

from hccl_py.bench.collective import main
from hccl_py.bench.collective.contender import Endpoint, Timed
from hccl_py.bench.collective.oracle import Call
from hccl_py.bench.collective.over_torch import TorchContender


class _OverGloo(TorchContender):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__("gloo", endpoint)
        self.zeros = lambda count, dtype: torch.zeros(count, dtype=getattr(torch, dtype))


class OffByOne(_OverGloo):
    """Spoils the last element of the result on rank 1."""

    def bind(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> Timed:
        right = super().bind(call, input, output)

        def spoilt() -> None:
            right()
            if output is not None:  # a barrier has none
                output[-1] += self.rank

        return spoilt


class DoesNothing(_OverGloo):
    """Returns at once, and so does its barrier."""

    def bind(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> Timed:
        return lambda: None


class Dies(_OverGloo):
    """Rank 1 is killed in its call, as by the kernel when memory is short."""

    def bind(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> Timed:
        right = super().bind(call, input, output)
        return (
            right
            if self.rank != 1 or not call.count
            else lambda: os.kill(os.getpid(), signal.SIGKILL)
        )


class Hangs(_OverGloo):
    """Rank 1 never comes back from its call, deaf to everything but SIGKILL.

    Leaves a file named after each rank's process id in the folder $FAULTY_PIDS.
    """

    def bind(self, call: Call, input: torch.Tensor, output: torch.Tensor) -> Timed:
        if not call.count:
            return super().bind(call, input, output)
        if "FAULTY_PIDS" in os.environ:
            Path(os.environ["FAULTY_PIDS"], str(os.getpid())).touch()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().bind(call, input, output) if self.rank != 1 else threading.Event().wait


if __name__ == "__main__":
    main.contenders_of = lambda options: {"hccl": Hangs}
    sys.exit(main.main())
