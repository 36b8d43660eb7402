"""Is the kernel's copy between processes worth it? `python -m benchmarks.cross_memory`.

A message in ordinary memory is copied twice: by the sender into a slot of shared memory and by the
receiver out of it. `process_vm_readv` copies once, in the kernel, which looks up every page of the
sender. One process does either here, so "twice" is the work of both ranks.
"""

import mmap
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from benchmarks.harness import parser_of_command
from benchmarks.kernel_copy import READ, kernel_copy

_Bytes = npt.NDArray[np.uint8]

_SIZES = tuple(1 << bits for bits in (14, 16, 17, 18, 20, 22, 26))
_SLOT_BYTES = 128 << 10
_ROUNDS = 7
_BYTES_PER_ROUND = 128 << 20
_TIMEOUT_S = 60.0


def main() -> None:
    """Print microseconds per message for both ways, in alternating rounds."""
    parser_of_command("benchmarks.cross_memory", __doc__ or "").read()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    sender = context.Process(target=_hold, args=(there, max(_SIZES)), daemon=True)
    sender.start()
    if not here.poll(_TIMEOUT_S):
        raise TimeoutError(f"the sending process did not start in {_TIMEOUT_S:g} s")
    pid, source, huge_source = here.recv()
    print(f"{'bytes':>9}  {'readv':>8}  {'huge pages':>10}  {'twice':>8}  us, medians of {_ROUNDS}")
    mine = np.ones(max(_SIZES), np.uint8)
    received = np.ones(max(_SIZES), np.uint8)
    slots = np.frombuffer(mmap.mmap(-1, 8 * _SLOT_BYTES), np.uint8)
    for size in _SIZES:
        ways: tuple[Callable[[int], None], ...] = (
            partial(_read, pid, source, received[:size]),
            partial(_read, pid, huge_source, received[:size]),
            partial(_copy_twice, mine, slots, received[:size]),
        )
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(_ROUNDS):
            for way, column in zip(ways, times, strict=True):
                column.append(_time_us(way, size))
        readv, huge, twice = map(statistics.median, times)
        print(f"{size:9}  {readv:8.1f}  {huge:10.1f}  {twice:8.1f}", flush=True)
    here.close()
    sender.join(_TIMEOUT_S)


def _hold(pipe: Connection, num_bytes: int) -> None:
    """Be the sender: say where the memory is, and keep it until the pipe closes."""
    memory = np.ones(num_bytes, np.uint8)
    huge = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    huge.madvise(mmap.MADV_HUGEPAGE)
    pages = np.frombuffer(huge, np.uint8)
    pages[:] = 1
    pipe.send((os.getpid(), memory.ctypes.data, pages.ctypes.data))
    pipe.poll(None)


def _read(pid: int, source: int, destination: _Bytes, at: int) -> None:
    kernel_copy(READ, pid, destination, source + at)()


def _copy_twice(source: _Bytes, slots: _Bytes, destination: _Bytes, at: int) -> None:
    for begin in range(0, destination.nbytes, _SLOT_BYTES):
        piece = source[at + begin : at + begin + min(_SLOT_BYTES, destination.nbytes)]
        slot = slots[begin % slots.nbytes :][: piece.nbytes]
        slot[:] = piece
        destination[begin : begin + piece.nbytes] = slot


def _time_us(way: Callable[[int], None], size: int) -> float:
    """Return the mean time of a message; the messages lie side by side, as tiles of a tensor do."""
    num_messages = max(2, min(_BYTES_PER_ROUND // size, 200))
    places = range(0, max(_SIZES) - size + 1, size)
    begin = time.perf_counter()
    for number in range(num_messages):
        way(places[number % len(places)])
    return (time.perf_counter() - begin) / num_messages * 1e6


if __name__ == "__main__":
    main()
