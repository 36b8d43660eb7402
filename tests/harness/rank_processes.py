"""The processes of a job's ranks, as the kernel sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hccl_py import Communicator


def on_nodes(nodes: int, world_size: int = 4) -> Callable[[int], dict[str, str]]:
    """Spread ranks over emulated nodes, each a row of ranks."""
    return lambda rank: {"HCCL_NODE_ID": str(rank * nodes // world_size)}


class Pids:
    """Process ids of all ranks, exchanged through a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._pids = np.zeros(comm.world_size, np.int64)
        comm.all_gather(self._pids, np.array([os.getpid()]))

    def __getitem__(self, rank: int) -> int:
        return int(self._pids[rank])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        return state_of(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_asleep(pid: int) -> bool:
    """Whether the main thread has slept for a while."""
    return all(state_of(pid) == "S" for _ in range(20))
