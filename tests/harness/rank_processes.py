"""The processes of a job's ranks, as the kernel sees them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hccl_py import Communicator


def on_nodes(nodes: int) -> Callable[[int], dict[str, str]]:
    """Spread four ranks over emulated nodes."""
    return lambda rank: {"HCCL_NODE_ID": str(rank * nodes // 4)}


class Pids:
    """Process ids of all ranks, exchanged through a communicator."""

    def __init__(self, comm: Communicator) -> None:
        self._pids = np.zeros(comm.world_size, np.int64)
        comm.all_gather(self._pids, np.array([os.getpid()]))

    def __getitem__(self, rank: int) -> int:
        return int(self._pids[rank])


def is_in_state(process: int, state: str) -> bool:
    stat = Path(f"/proc/{process}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == state


def is_alive(pid: int) -> bool:
    try:
        return not is_in_state(pid, "Z")
    except FileNotFoundError:
        return False


def is_asleep(pid: int) -> bool:
    """Whether the main thread has slept for a while."""

    def switches() -> str:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    return all(switches() == "S" for _ in range(20))
