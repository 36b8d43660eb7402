"""The two faces that a job's ranks can have: a Communicator, or torch.distributed."""

import os
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from random_calls import NativeCalls, TorchCalls

from hccl_py import Communicator, CommunicatorError

BOOTSTRAP_S = 60.0


class NativeGroup:
    """A Communicator. Leaving the context ends it as a program would."""

    error: type[Exception] = CommunicatorError

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

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.comm.__exit__(*raised)


class TorchGroup:
    """The default process group."""

    error: type[Exception] = dist.DistBackendError

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
        self.comm = dist.distributed_c10d._get_default_group().communicator
        self.calls = TorchCalls()

    def set_timeout(self, timeout_s: float) -> None:
        group = dist.distributed_c10d._get_default_group()
        group.set_timeout(timedelta(seconds=timeout_s))

    def barrier(self) -> None:
        dist.barrier()

    def close(self) -> None:
        dist.destroy_process_group()
        del self.comm, self.calls

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: Any) -> None:
        dist.destroy_process_group()  # in a `finally`, say


Group = NativeGroup | TorchGroup
GROUPS: dict[str, type[Group]] = {"native": NativeGroup, "torch": TorchGroup}
