"""No thread of the library takes a signal of the process."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from ranks import run_ranks
from thread_ranks import wait_until

UNBLOCKABLE = {signal.SIGKILL, signal.SIGSTOP}
# Of the processor's own: glibc keeps two for itself, and a fault ends the process in any case.
ALL = {number for number in signal.valid_signals() if number not in UNBLOCKABLE}


def blocked_signals(thread: Path) -> set[int]:
    for line in Path(thread, "status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            mask = int(line.split()[1], 16)
            return {number for number in range(1, 65) if mask >> (number - 1) & 1}
    raise AssertionError("a thread has a mask")


def threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def start_every_thread(rank: int, world_size: int) -> None:
    before = threads()
    dist.init_process_group("hccl")
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None
    work.get_future().wait()
    made = threads() - before
    # The control thread, the flight recorder's, that of futures and the engine's.
    assert len(made) >= 4, made
    for thread in made:
        assert blocked_signals(thread) >= ALL, (thread, ALL - blocked_signals(thread))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "the caller's own mask stays"
    dist.destroy_process_group()


def test_threads_of_the_library_block_all_signals() -> None:
    run_ranks(start_every_thread, 2)


def dump_after_signals_with_handlers(rank: int, world_size: int) -> None:
    from hccl_py import Communicator

    comm = Communicator()
    seen: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    for thread in threads():
        if int(thread.name) != os.getpid():
            signal_thread(int(thread.name), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    wait_until(
        lambda: any(Path(os.environ["HCCL_TRACE_DIR"]).iterdir()), "the flight recorder writes"
    )
    comm.all_reduce(np.ones(1))
    comm.close()


def signal_thread(thread: int, number: int) -> None:
    """Send a signal to one thread, as the kernel may choose it for a signal of the process."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    tgkill = 234 if sys.platform == "linux" and os.uname().machine == "x86_64" else 131
    assert libc.syscall(tgkill, os.getpid(), thread, number) == 0


def test_signal_with_a_handler_leaves_the_flight_recorder_its_thread(tmp_path: Path) -> None:
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    run_ranks(
        dump_after_signals_with_handlers,
        2,
        env=lambda rank: {"HCCL_TRACE_DIR": str(folders[rank])},
    )
