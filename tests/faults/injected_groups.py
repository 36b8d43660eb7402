"""The two faces that a job's ranks can have: a Communicator, or torch.distributed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from random_calls import NativeCalls, Target, TorchCalls

from hccl_py import Communicator, CommunicatorError

BOOTSTRAP_S = 60.0


class Group(ABC):
    """All ranks, however they are reached. Leaving the context ends it as a program would."""

    error: type[Exception]
    comm: Communicator
    calls: Target

    @abstractmethod
    def set_timeout(self, timeout_s: float) -> None:
        """Set the default of all calls."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for all."""

    @abstractmethod
    def close(self) -> None:
        """End it; what holds it lets go."""

    @abstractmethod
    def __enter__(self) -> Group:
        """Return itself."""

    @abstractmethod
    def __exit__(self, *raised: Any) -> None:
        """End it, as a program does that may have raised something."""


class NativeGroup(Group):
    """A Communicator."""

    error = CommunicatorError

    def __init__(self, name: str) -> None:
        self.comm = Communicator(timeout_s=BOOTSTRAP_S, name=name)
        self.calls = NativeCalls(self.comm)

    def set_timeout(self, timeout_s: float) -> None:
        self.comm.timeout_s = timeout_s

    def barrier(self) -> None:
        self.comm.barrier()

    def close(self) -> None:
        self.comm.close()
        del self.comm, self.calls

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.comm.__exit__(*raised)


class TorchGroup(Group):
    """The default process group."""

    error = dist.DistBackendError

    def __init__(self, name: str) -> None:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, is_master=False)
        dist.init_process_group(
            "hccl",
            store=dist.PrefixStore(name, store),
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=BOOTSTRAP_S),
        )
        self.comm = dist.distributed_c10d._get_default_group()._communicator
        self.calls = TorchCalls()

    def set_timeout(self, timeout_s: float) -> None:
        group = dist.distributed_c10d._get_default_group()
        group.set_timeout(timedelta(seconds=timeout_s))

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()
        del self.comm, self.calls

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *raised: Any) -> None:
        dist.destroy_process_group()  # in a `finally`, say


GROUPS: dict[str, type[NativeGroup] | type[TorchGroup]] = {
    "native": NativeGroup,
    "torch": TorchGroup,
}
