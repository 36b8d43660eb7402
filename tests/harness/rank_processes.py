"""The processes of a job's ranks, as the kernel sees them."""

import os
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py import Communicator, communicator
from hccl_py.diagnosis import errors, reporter
from hccl_py.transport.control import coordinator


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


def wait_for_every_report() -> None:
    """Have the diagnoses of this process wait for slow ranks, until these are known to be dead.

    A diagnosis comes soon, and of a rank that has not answered by then it says so. What it says
    depends on the load of the machine, unless the ranks of a test call this first.
    """
    coordinator.WINDOW_S = HANG_S
    reporter._WINDOW_OF_TIMEOUT = errors._WINDOW_OF_WAIT = HANG_S
    communicator.DIAGNOSIS_TIMEOUT_S = reporter.DIAGNOSIS_TIMEOUT_S = HANG_S  # type: ignore[attr-defined]


def kill_at_one_moment(pids: Sequence[int], victims: Collection[int]) -> None:
    """Kill some ranks while the others are stopped: these see all of it, or nothing."""
    others = [pid for rank, pid in enumerate(pids) if rank not in victims]
    dying = [pids[rank] for rank in victims]
    for pid in others:
        os.kill(pid, signal.SIGSTOP)
    for pid in dying:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(_has_threads, dying)), "the victims die")
    for pid in others:
        os.kill(pid, signal.SIGCONT)


def _has_threads(pid: int) -> bool:
    """Whether a process may still have anything open: its main thread ends before the others."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return is_alive(pid) or len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


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
