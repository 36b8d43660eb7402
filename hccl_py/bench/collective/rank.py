"""One rank process: opens the contenders, then does as it is asked until the command hangs up.

It decides nothing. What to run, how often and in which order comes from `measure` through
`ranks`; a reply goes back for each request, a traceback when one fails.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing import connection, parent_process
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.communicator_contender import CommunicatorContender
from hccl_py.bench.collective.contender import Buffers, Contender, Timed
from hccl_py.bench.collective.messages import Assignment, Checked, Counted, Failed
from hccl_py.bench.collective.oracle import PERIOD, Call, Piece, contribution
from hccl_py.bench.collective.speeds import (
    Wire,
    copy_gb_per_s,
    exchange_until_closed,
    send_until_closed,
)
from hccl_py.bench.namespaces import enter
from hccl_py.bench.tuning.sweep import Swept, sweep
from hccl_py.transport.errors import InvalidArgumentError

_STAGGER_S = 0.002
_INT8_ERROR = 2.01 / 253 * 127
"""Of sums of the oracle's data, which are at most 127; bf16 holds these exactly."""

Times = npt.NDArray[np.float64]
_Seconds = TypeVar("_Seconds", float, Times)


class Rank:
    """The requests that a rank process answers, one method each."""

    def __init__(self, rank: int, contenders: Sequence[Contender]) -> None:
        """Take over the contenders, which are open."""
        self._rank = rank
        self._contenders = contenders
        self._barriers = [contender.barrier() for contender in contenders]
        self._calls: list[Timed] = []
        self._buffers: list[Buffers] = []

    def prepare(self, op: str, call: Call) -> None:
        """Make buffers for one size and bind every contender's call to them."""
        self._calls = []  # frees the last size's buffers before the next are made
        self._buffers = []
        self._op, self._call, self._case = op, call, CASES[op]
        self._buffers = [self._make_buffers(contender) for contender in self._contenders]
        self._calls = [
            self._case.prepare(contender, call, buffers, self._rank)
            for contender, buffers in zip(self._contenders, self._buffers, strict=True)
        ]

    def _make_buffers(self, contender: Contender) -> Buffers:
        call, dtype = self._call, getattr(torch, self._call.dtype)
        layout = self._case.layout(call.count, call.world_size)

        def zeros(count: int) -> torch.Tensor:
            # Written once more: what was never written is one page of zeros to the kernel, which
            # is read from the cache.
            return contender.zeros(count, dtype).zero_()

        if not call.in_place:
            return Buffers(zeros(layout.input_count), zeros(layout.output_count))
        whole = zeros(max(layout.input_count, layout.output_count))
        block = whole[self._rank * call.count :][: call.count]
        is_block = layout.input_count < whole.numel(), layout.output_count < whole.numel()
        return Buffers(*(block if smaller else whole for smaller in is_block))

    def check(self, contender: int) -> Checked:
        """Run once on known data and count wrong elements; leaves zeros in the buffers."""
        at = self._buffers[contender]
        at.output.fill_(1)
        _fill(at.input, contribution(self._call, self._rank))
        self._barriers[contender]()
        if self._op == "barrier":
            time.sleep(self._rank * _STAGGER_S)  # a barrier that does not wait is noticed
        entered_ns = time.monotonic_ns()
        self._calls[contender]()
        left_ns = time.monotonic_ns()
        pieces = self._case.expectation(self._call, self._rank)
        error = _INT8_ERROR if self._contenders[contender].compression == "int8" else 0.0
        num_wrong = count_wrong(at.output, pieces, self._call.reduce_op == "avg", error)
        at.input.zero_()
        at.output.zero_()
        return Checked(num_wrong, entered_ns, left_ns)

    def time(self, contender: int, calls: int, warmup: int) -> float:
        """Run one round; returns this rank's seconds per call, not a number if it takes no part."""
        call = self._calls[contender]
        self._barriers[contender]()
        for _ in range(warmup):
            call()
        gc.disable()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed_s = time.perf_counter() - start
        gc.enable()
        return self._one_way(elapsed_s / calls)

    def sample(self, contender: int, calls: int, warmup: int, apart: bool) -> Times:
        """Time every call of a round by itself; returns seconds, one for each call.

        Args:
            contender: whose call.
            calls: how many.
            warmup: untimed ones before them.
            apart: a barrier before each, which is not timed.
        """
        call, barrier = self._calls[contender], self._barriers[contender]
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
        return self._one_way(np.subtract(ends, starts))

    def start_profile(self) -> None:
        """Have the first contender, a CommunicatorContender, time its parts; see --profile."""
        first = self._contenders[0]
        assert isinstance(first, CommunicatorContender)
        self._profiled = first
        first.start_profile()

    def profile(self, calls: int) -> tuple[float, Counted, Counted]:
        """Run a round; return seconds per call, and the engine's counters around it."""
        call = self._calls[0]
        self._barriers[0]()
        call()
        before = self._profiled.counted()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = (time.perf_counter() - start) / calls
        return seconds, before, self._profiled.counted()

    def _one_way(self, seconds: _Seconds) -> _Seconds:
        if not self._call.takes_part(self._rank):
            return seconds * math.nan
        return seconds / self._case.messages

    def copy_gb_per_s(self, size: int) -> float | None:
        """Measure memcpy, on rank 0 only."""
        return copy_gb_per_s(size) if self._rank == 0 else None

    def listen(self, receiver: int) -> tuple[str, int] | None:
        """Open the receiver's end of plain sockets, on the others nothing."""
        if self._rank != receiver:
            return None
        self._wire = Wire.listen(os.environ["HCCL_BENCH_ADDRESS"])
        return self._wire.address

    def wire_gb_per_s(
        self, receiver: int, sender: int, where: tuple[str, int], both_ways: bool
    ) -> float | None:
        """Measure what plain sockets carry; only the receiver knows."""
        if self._rank == sender:
            (exchange_until_closed if both_ways else send_until_closed)(where)
        if self._rank != receiver:
            return None
        return self._wire.exchange() if both_ways else self._wire.receive()

    def sweep(self, sizes: Sequence[int], budget_s: float) -> Swept:
        """Measure the algorithms of all collectives; the only contender is a communicator."""
        (contender,) = self._contenders
        assert isinstance(contender, CommunicatorContender)
        return sweep(self, contender.communicator, sizes, budget_s)

    def call(self, contender: int, method: str, *arguments: object) -> object:
        """Call a method that one kind of contender has beside those of the interface."""
        return getattr(self._contenders[contender], method)(*arguments)

    def statistics(self) -> list[str | None]:
        """Say what each contender counted."""
        return [contender.statistics() for contender in self._contenders]


def count_wrong(
    actual: torch.Tensor, pieces: Sequence[Piece], rounded: bool, error: float = 0.0
) -> int:
    """Count elements that differ from the expectation.

    Args:
        actual: a result, one-dimensional.
        pieces: what it must be, from its first element on.
        rounded: allow an average in floating point its last digit; else values must be equal.
        error: allow this much, in any case.
    """
    tolerance = torch.finfo(actual.dtype).eps if rounded and actual.is_floating_point() else 0.0
    num_wrong = start = 0
    for piece in pieces:
        part = actual[start : start + piece.count]
        start += piece.count
        pattern = torch.from_numpy(np.ascontiguousarray(piece.pattern)).to(actual.dtype)
        whole = piece.count - piece.count % PERIOD
        for got, want in (
            (part[:whole].view(-1, PERIOD), pattern),
            (part[whole:], pattern[: piece.count - whole]),
        ):
            limit = tolerance * want.abs() + error
            right = (got - want).abs() <= limit if tolerance or error else got == want
            num_wrong += int((~right).sum())
    return num_wrong


def _fill(data: torch.Tensor, pattern: npt.NDArray[np.int64]) -> None:
    period = torch.from_numpy(pattern).to(data.dtype)
    whole = data.numel() - data.numel() % PERIOD
    data[:whole].view(-1, PERIOD).copy_(period)
    data[whole:].copy_(period[: data.numel() - whole])


def serve(pipe: connection.Connection, assignment: Assignment) -> None:
    """Be a rank process: answer requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's to handle
    try:
        if assignment.namespace is not None:
            enter(assignment.namespace)  # before there is any other thread
        threading.Thread(target=_end_with_parent, daemon=True).start()
        os.environ.update(assignment.environment)
        torch.set_num_threads(1)
        with ExitStack() as opened:
            contenders = []
            for open_contender, endpoint in assignment.contenders:
                contenders.append(open_contender(endpoint))
                opened.callback(contenders[-1].close)
            rank = Rank(assignment.rank, contenders)
            pipe.send(None)
            _answer(pipe, rank)
        pipe.send(None)
    except BaseException as error:
        with suppress(OSError):  # nobody reads it once the command was killed
            is_wrong_input = isinstance(error, InvalidArgumentError)
            in_full = "" if is_wrong_input else traceback.format_exc()
            pipe.send(Failed(f"{type(error).__name__}: {error}", in_full))
        raise SystemExit(1) from None


def _answer(pipe: connection.Connection, rank: Rank) -> None:
    """Serve requests until one says to close."""
    while True:
        method, arguments = pipe.recv()
        if method == "close":
            return
        pipe.send(getattr(rank, method)(*arguments))


def _end_with_parent() -> None:
    """Leave no orphan: a rank may hang in a collective when the command is killed."""
    parent = parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
