"""Contenders with one fault each, over gloo. Rank processes import this module by name."""

import os
import signal
import sys
import threading
from pathlib import Path

import torch

from hccl_py.bench.collective import main
from hccl_py.bench.collective.contender import Endpoint, Timed
from hccl_py.bench.collective.contenders import APIS
from hccl_py.bench.collective.torch_contender import TorchContender


class _OverGloo(TorchContender):
    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__("gloo", endpoint)


class OffByOne(_OverGloo):
    """Spoils the last element of the result on rank 1."""

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        right = super().all_reduce(data, reduce_op)

        def spoilt() -> None:
            right()
            data[-1] += self._rank

        return spoilt


class DoesNothing(_OverGloo):
    """Returns at once, and so does its barrier."""

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        return lambda: None

    def barrier(self) -> Timed:
        return lambda: None


class Dies(_OverGloo):
    """Rank 1 is killed in its call, as by the kernel when memory is short."""

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        right = super().all_reduce(data, reduce_op)
        return right if self._rank != 1 else lambda: os.kill(os.getpid(), signal.SIGKILL)


class Hangs(_OverGloo):
    """Rank 1 never comes back from its call, deaf to everything but SIGKILL.

    Leaves a file named after each rank's process id in the folder $FAULTY_PIDS.
    """

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        if "FAULTY_PIDS" in os.environ:
            Path(os.environ["FAULTY_PIDS"], str(os.getpid())).touch()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return super().all_reduce(data, reduce_op) if self._rank != 1 else threading.Event().wait


if __name__ == "__main__":
    APIS["torch"] = Hangs
    sys.exit(main.main())
