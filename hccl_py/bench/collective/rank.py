"""One rank process: opens the contenders, then serves requests until the command ends them.

A request is a function and its arguments. The rank passes its `Rank` as the first argument and
sends back the result, or a traceback. The requests that every measurement needs are here, others
are beside the code that makes them.
"""

import gc
import math
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.contender import Contender, Endpoint, Open, Timed, has_torch
from hccl_py.bench.collective.oracle import BARRIER, FLOAT_TYPES, PERIOD, Call, Piece, contribution
from hccl_py.bench.namespaces import enter
from hccl_py.transport.errors import InvalidArgumentError

_STAGGER_S = 0.002
_INT8_ERROR = 2.01 / 253 * 127
"""Allowed error of int8 for sums of the oracle's data, which are at most 127; bf16 is exact."""

_Seconds = TypeVar("_Seconds", float, npt.NDArray[np.float64])


@dataclass(frozen=True)
class Checked:
    """The outcome of one checked call on one rank; times are comparable within a host."""

    num_wrong: int
    entered_ns: int
    left_ns: int


@dataclass(frozen=True)
class Failed:
    """A rank's exception in one line, and its traceback, empty where an argument is wrong."""

    error: str
    traceback: str


class Rank:
    """The contenders of one rank, and their calls on buffers of the current size.

    Attributes:
        rank: its rank.
        contenders: open; the caller closes them.
        call: what is measured.
        calls: the bound call of each contender.
        barriers: the barrier of each contender.
        buffers: input and output of each contender; in place they are the same or overlap.
        listener: the socket that `analysis/limits.py` accepts on.
    """

    call: Call
    listener: socket.socket

    def __init__(self, rank: int, contenders: Sequence[Contender]) -> None:
        """Take over the contenders."""
        self.rank, self.contenders = rank, contenders
        self.barriers = [contender.bind(BARRIER, None, None) for contender in contenders]
        self.calls: list[Timed] = []
        self.buffers: list[tuple[Any, Any]] = []

    def one_way(self, seconds: _Seconds) -> _Seconds:
        """Return the time of one message of a call; not a number if this rank takes no part."""
        if not self.call.takes_part(self.rank):
            return seconds * math.nan
        return seconds / CASES[self.call.op].messages


def prepare(rank: Rank, call: Call) -> None:
    """Make buffers for one size and bind every contender's call to them."""
    rank.calls, rank.buffers = [], []  # frees the last size's buffers before the next are made
    rank.call = call
    rank.buffers = [_make_buffers(rank, contender) for contender in rank.contenders]
    bind = CASES[call.op].bind
    rank.calls = [
        bind(contender, call, rank.rank, *buffers)
        for contender, buffers in zip(rank.contenders, rank.buffers, strict=True)
    ]


def _make_buffers(rank: Rank, contender: Contender) -> tuple[Any, Any]:
    call = rank.call
    counts = [blocks * call.count for blocks in CASES[call.op].blocks(call.world_size)]

    def zeros(count: int) -> Any:
        # Writes every page: pages that were never written all share one page of zeros, which is
        # read from the cache.
        made = contender.zeros(count, call.dtype)
        made[:] = 0
        return made

    if not call.in_place:
        return zeros(counts[0]), zeros(counts[1])
    whole = zeros(max(counts))
    block = whole[rank.rank * call.count :][: call.count]
    input, output = (block if count < max(counts) else whole for count in counts)
    return input, output


def check(rank: Rank, contender: int) -> Checked:
    """Run once on known data and count wrong elements; leaves zeros in the buffers."""
    call, (input, output) = rank.call, rank.buffers[contender]
    output[:] = 1
    _fill(input, contribution(call, rank.rank))
    rank.barriers[contender]()
    if call.op == "barrier":
        time.sleep(rank.rank * _STAGGER_S)  # shows a barrier that does not wait
    entered_ns = time.monotonic_ns()
    rank.calls[contender]()
    left_ns = time.monotonic_ns()
    error = _INT8_ERROR if rank.contenders[contender].compression == "int8" else 0.0
    relative = FLOAT_TYPES.get(call.dtype, 0.0) if call.reduce_op == "avg" else 0.0
    num_wrong = _count_wrong(output, CASES[call.op].expectation(call, rank.rank), relative, error)
    input[:] = output[:] = 0
    return Checked(num_wrong, entered_ns, left_ns)


def time_calls(rank: Rank, contender: int, calls: int, warmup: int) -> float:
    """Run one round; return seconds per call, not a number if this rank takes no part."""
    call = rank.calls[contender]
    rank.barriers[contender]()
    for _ in range(warmup):
        call()
    gc.disable()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    elapsed_s = time.perf_counter() - start
    gc.enable()
    return rank.one_way(elapsed_s / calls)


def cpu_of_calls(rank: Rank, contender: int, calls: int) -> float:
    """Run one round; return the CPU seconds of all threads of this rank for a call."""
    began_s = time.process_time()
    time_calls(rank, contender, calls, 0)
    return rank.one_way((time.process_time() - began_s) / calls)


def time_each(
    rank: Rank, contender: int, calls: int, warmup: int, apart: bool
) -> npt.NDArray[np.float64]:
    """Time every call of a round by itself; return seconds, one for each call.

    Args:
        rank: this one.
        contender: whose call.
        calls: how many.
        warmup: untimed ones before them.
        apart: whether an untimed barrier precedes each call.
    """
    call, barrier = rank.calls[contender], rank.barriers[contender]
    barrier()
    for _ in range(warmup):
        call()
    clock, starts, ends = time.perf_counter, [0.0] * calls, [0.0] * calls
    gc.disable()
    for index in range(calls):
        if apart:
            barrier()
        starts[index] = clock()
        call()
        ends[index] = clock()
    gc.enable()
    return rank.one_way(np.subtract(ends, starts))


def statistics(rank: Rank) -> list[str | None]:
    """Return the counters of each contender as text."""
    return [contender.statistics() for contender in rank.contenders]


def _count_wrong(actual: Any, pieces: Sequence[Piece], relative: float, error: float) -> int:
    """Count elements that differ from the expectation by more than is allowed."""
    num_wrong = start = 0
    for piece in pieces:
        part = actual[start : start + piece.count]
        start += piece.count
        pattern = _like(actual, piece.pattern)
        whole = piece.count - piece.count % PERIOD
        for got, want in (
            (part[:whole].reshape(-1, PERIOD), pattern),
            (part[whole:], pattern[: piece.count - whole]),
        ):
            limit = relative * abs(want) + error
            right = abs(got - want) <= limit if relative or error else got == want
            num_wrong += int((~right).sum())
    return num_wrong


def _fill(data: Any, pattern: npt.NDArray[np.int64]) -> None:
    period = _like(data, pattern)
    whole = len(data) - len(data) % PERIOD
    data[:whole].reshape(-1, PERIOD)[:] = period
    data[whole:] = period[: len(data) - whole]


def _like(data: Any, pattern: npt.NDArray[Any]) -> Any:
    """Return a pattern as `data` is: a tensor or an array, of its element type."""
    if isinstance(data, np.ndarray):
        return pattern.astype(data.dtype)
    import torch  # not above: the command imports this file and must start quickly

    return torch.from_numpy(np.ascontiguousarray(pattern)).to(data.dtype)


def serve(
    pipe: connection.Connection,
    rank: int,
    namespace: str | None,
    environment: dict[str, str],
    contenders: Sequence[tuple[Open, Endpoint]],
) -> None:
    """Run a rank process: serve requests until the command sends None.

    Args:
        pipe: to the command.
        rank: its rank.
        namespace: network namespace to work in; None: the command's own.
        environment: variables that a launcher would set.
        contenders: what to open, each with the endpoint of its ranks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C
    try:
        if namespace is not None:
            enter(namespace)  # before there is any other thread
        threading.Thread(target=_end_with_parent, daemon=True).start()
        os.environ.update(environment)
        if contenders and has_torch():
            import torch

            torch.set_num_threads(1)
        with ExitStack() as opened:
            found = [opened.enter_context(closing(make(at))) for make, at in contenders]
            served = Rank(rank, found)
            pipe.send(None)
            while (request := pipe.recv()) is not None:
                function, arguments = request
                pipe.send(function(served, *arguments))
        pipe.send(None)
    except BaseException as error:
        with suppress(OSError):  # the command may have been killed
            is_wrong_input = isinstance(error, InvalidArgumentError)
            in_full = "" if is_wrong_input else traceback.format_exc()
            pipe.send(Failed(f"{type(error).__name__}: {error}", in_full))
        raise SystemExit(1) from None


def _end_with_parent() -> None:
    """End this process with the command, even if a rank hangs in a collective then."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
