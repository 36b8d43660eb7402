"""No thread of the library takes a signal of the process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.sockets import bind_listener

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
    late = dist.irecv(torch.ones(1), 1 - rank)  # the engine's thread waits for it
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None
    work.get_future().wait()
    made = threads() - before
    # The control thread, the flight recorder's and the engine's; that of futures if it had to wait.
    assert len(made) >= 3, made
    for thread in made:  # that of futures may still be in a callback
        wait_until(lambda one=thread: blocked_signals(one) >= ALL, "all signals are blocked")  # type: ignore[misc]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set(), "the caller's own mask stays"
    dist.send(torch.ones(1), 1 - rank)
    assert late is not None
    late.wait()
    dist.destroy_process_group()


def test_threads_of_the_library_block_all_signals() -> None:
    run_ranks(start_every_thread, 2)


def start_a_process_in_a_callback(rank: int, world_size: int) -> None:
    dist.init_process_group("hccl")
    is_attached = torch.ones(1)
    if rank == 1:  # the call cannot end before the callback is attached
        dist.recv(is_attached, 0)
    work = dist.all_reduce(torch.ones(100_000), async_op=True)
    assert work is not None
    masks = work.get_future().then(lambda _: subprocess.check_output(["cat", "/proc/self/status"]))
    if rank == 0:
        dist.send(is_attached, 1)
    assert b"SigBlk:\t0000000000000000\n" in masks.wait()
    dist.destroy_process_group()


def test_process_that_a_callback_starts_blocks_no_signal() -> None:
    run_ranks(start_a_process_in_a_callback, 2)


def interrupt(number: int, frame: object) -> None:
    raise TimeoutError("the handler's own")


def test_error_of_a_signal_handler_is_not_taken_for_a_port_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.signal(signal.SIGUSR1, interrupt)
    monkeypatch.setattr(socket.socket, "bind", lambda *_: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(TimeoutError):
            bind_listener(Endpoint("", "127.0.0.1"), None)
    finally:
        signal.signal(signal.SIGUSR1, before)


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
