"""What the data movement of a collective takes alone: no messages, and no rank waits for another.

Each rank does its share of the copies and sums, all ranks at once. What goes from one process to
another is copied once, by the kernel (`process_vm_readv`, `process_vm_writev`): on most machines
the cheapest way for large blocks, where memory is not shared. A rank copies its own block itself.
Sums are made a tile at a time, out of what was read last.

- all_gather: a rank reads each other rank's block; all_to_all: its own block out of each other
  rank's memory.
- broadcast: the root writes one block to each other rank, which reads the others.
- reduce_scatter: a rank reads its block from all and adds them up.
- reduce, all_reduce: so it does, and writes the sum into the root's memory, or into everybody's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.peers.library import ROOT, Array, Call, Library, open_communicator

_TILE = 32768
"""Elements that are summed at a time: they and the tile of another rank stay in a core's cache."""

_FLOAT_BYTES = 4


class _Extent(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


def _function(name: str) -> Callable[..., int]:
    function = _LIBC[name]
    function.restype = ctypes.c_ssize_t
    some = (ctypes.POINTER(_Extent), ctypes.c_ulong)
    function.argtypes = (ctypes.c_int, *some, *some, ctypes.c_ulong)
    return function


_LIBC = ctypes.CDLL(None, use_errno=True)
READ = _function("process_vm_readv")
WRITE = _function("process_vm_writev")


def kernel_copy(
    function: Callable[..., int], pid: int, here: Array, there: int
) -> Callable[[], None]:
    """Return the call that copies between an array of this process and an address of another.

    Args:
        function: READ, into the array, or WRITE, out of it.
        pid: the other process.
        here: a contiguous array of any type, which the call keeps alive.
        there: where as many bytes lie in the other process.
    """
    num_bytes = here.nbytes
    local, remote = _Extent(here.ctypes.data, num_bytes), _Extent(there, num_bytes)
    arguments = (pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)

    def call(_kept: object = here) -> None:
        copied = function(*arguments)
        if copied != num_bytes:
            code = ctypes.get_errno() if copied < 0 else 0
            why = os.strerror(code) if code else f"{copied} were copied"
            name = "process_vm_readv" if function is READ else "process_vm_writev"
            raise OSError(code, f"{name} of {num_bytes} bytes of process {pid}: {why}")

    return call


def open_copies() -> Library:
    """Open what moves the data; a Communicator tells each rank where the others' memory is."""
    within = open_communicator()
    return within._replace(bind=partial(_bind, within), settle=within.barrier)


def may_copy() -> bool:
    """Tell whether the kernel lets a process of this user read another one's memory."""
    wait = "print(ctypes.addressof(b), flush=True); sys.stdin.read()"
    first = "import ctypes, sys; b = ctypes.create_string_buffer(8)"
    holds = [sys.executable, "-c", f"{first}; {wait}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(holds, text=True, stdin=pipe, stdout=pipe) as owner:
        assert owner.stdin and owner.stdout
        address = int(owner.stdout.readline())
        reads = f"kernel_copy(READ, {owner.pid}, numpy.zeros(1), {address})()"
        code = f"import numpy; from {kernel_copy.__module__} import READ, kernel_copy; {reads}"
        reader = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        )
        owner.stdin.close()
    if reader.returncode and "process_vm_readv" not in reader.stderr:
        raise RuntimeError(f"expected a process that reads another's memory: {reader.stderr}")
    return reader.returncode == 0


def _bind(within: Library, op: str, input: Array, output: Array) -> Call:
    n, rank = within.world_size, within.rank
    where = np.zeros((n, 3))  # float64, exact up to 2^53: user addresses are below 2^47
    where[rank] = os.getpid(), input.ctypes.data, output.ctypes.data
    within.slowest(where)  # the others have zeros there
    others = [(rank + step) % n for step in range(1, n)]
    # Where the block of each rank begins and ends, of the larger buffer and of the smaller.
    larger = [max(input.size, output.size) * i // n for i in range(n + 1)]
    mine = slice(larger[rank], larger[rank + 1])

    def copy(function: Callable[..., int], here: Array, peer: int, buffer: int, first: int) -> Call:
        pid, *addresses = (int(number) for number in where[peer])
        return kernel_copy(function, pid, here, addresses[buffer] + first * _FLOAT_BYTES)

    def read(into: Array, peer: int, first: int) -> Call:
        return copy(READ, into, peer, 0, first)

    def sums(into: Array, targets: list[int]) -> Iterator[Call]:
        scratch = np.empty(_TILE, np.float32)
        for begin in range(0, into.size, _TILE):
            tile = into[begin : begin + _TILE]
            first = mine.start + begin
            own = input[first : first + tile.size]
            for peer in others:
                theirs = scratch[: tile.size]
                yield read(theirs, peer, first)
                yield partial(np.add, own, theirs, out=tile)
                own = tile
            for peer in targets:
                yield copy(WRITE, tile, peer, 1, first)

    def steps() -> Iterator[Call]:
        if op == "broadcast" and rank == ROOT:
            for peer in others:
                span = slice(larger[peer], larger[peer + 1])
                yield copy(WRITE, input[span], peer, 1, span.start)
        elif op == "broadcast":
            for begin, end in ((0, mine.start), (mine.stop, input.size)):
                if begin < end:
                    yield read(input[begin:end], ROOT, begin)
        elif op in ("all_gather", "all_to_all"):
            sends = op == "all_to_all"
            yield partial(np.copyto, output[mine], input[mine] if sends else input)
            for peer in others:
                block = output[larger[peer] : larger[peer + 1]]
                yield read(block, peer, mine.start if sends else 0)
        elif op == "reduce_scatter":
            yield from sums(output, [])
        elif op == "reduce":
            is_root = rank == ROOT
            into = output[mine] if is_root else np.empty(mine.stop - mine.start, np.float32)
            yield from sums(into, [] if is_root else [ROOT])
        else:
            yield from sums(output[mine], others)

    todo = list(steps())

    def call() -> None:
        for step in todo:
            step()

    return call
