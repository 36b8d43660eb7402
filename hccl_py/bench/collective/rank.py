"""One rank process: opens the contenders, then does as it is asked until the command hangs up.

It decides nothing. What to run, how often and in which order comes from `measure` through
`ranks`; a reply goes back for each request, a traceback when one fails.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing import connection, parent_process

import numpy as np
import numpy.typing as npt
import torch

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.communicator_contender import CommunicatorContender
from hccl_py.bench.collective.contender import Buffers, Contender, Timed
from hccl_py.bench.collective.messages import Assignment, Checked, Failed
from hccl_py.bench.collective.oracle import PERIOD, Call, Piece, contribution
from hccl_py.bench.namespaces import enter
from hccl_py.bench.tuning.sweep import Swept, sweep

_STAGGER_S = 0.002


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
            self._case.prepare(contender, call, buffers)
            for contender, buffers in zip(self._contenders, self._buffers, strict=True)
        ]

    def _make_buffers(self, contender: Contender) -> Buffers:
        layout = self._case.layout(self._call.count, self._call.world_size)
        dtype = getattr(torch, self._call.dtype)
        data = contender.zeros(layout.input_count, dtype)
        return Buffers(
            data, contender.zeros(layout.output_count, dtype) if layout.output_count else data
        )

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
        num_wrong = count_wrong(at.output, pieces, self._call.reduce_op == "avg")
        at.input.zero_()  # also touches every page: none is made while time is taken
        at.output.zero_()
        return Checked(num_wrong, entered_ns, left_ns)

    def time(self, contender: int, calls: int, warmup: int) -> float:
        """Run one round; returns this rank's seconds per call."""
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
        return elapsed_s / calls

    def sweep(self, sizes: Sequence[int], budget_s: float) -> Swept:
        """Measure the algorithms of all collectives; the only contender is a communicator."""
        (contender,) = self._contenders
        assert isinstance(contender, CommunicatorContender)
        return sweep(self, contender.communicator, sizes, budget_s)

    def statistics(self) -> list[str | None]:
        """Say what each contender counted."""
        return [contender.statistics() for contender in self._contenders]


def count_wrong(actual: torch.Tensor, pieces: Sequence[Piece], rounded: bool) -> int:
    """Count elements that differ from the expectation.

    Args:
        actual: a result, one-dimensional.
        pieces: what it must be, from its first element on.
        rounded: allow an average in floating point its last digit; else values must be equal.
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
            right = (got - want).abs() <= tolerance * want.abs() if tolerance else got == want
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
        pipe.send(Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))
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
