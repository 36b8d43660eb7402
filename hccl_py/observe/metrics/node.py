"""What is known of the ranks of a node, by the process that exports for them."""

import json
import os
import selectors
import socket
import threading
import time
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

from hccl_py.observe.metrics.counters import ProcessCounters
from hccl_py.transport.network.sockets import peer_process

ASK = b"?"
"""The packet that asks a process for its counters; all others are packed snapshots."""
MOST_BYTES = 1 << 20
_ANSWER_S = 1.0
"""How long a scrape waits for other processes: a stopped one does not answer."""

Snapshot = dict[str, Any]


class RankSample(NamedTuple):
    """The last known counters of a rank.

    Attributes:
        run, node, rank: its labels.
        is_up: whether its process has just answered.
        samples: name, values of labels and value; see `METRICS`.
    """

    run: str
    node: str
    rank: str
    is_up: bool
    samples: list[tuple[str, list[str], float]]


class NodeRanks:
    """The processes that answer this one, and those that ended; any thread may use it."""

    def __init__(self, counters: ProcessCounters, ended: list[Snapshot]) -> None:
        """Begin without others; `ended` are the last counters of processes that ended before."""
        self._counters, self._ended = counters, ended
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._last: dict[socket.socket, Snapshot | None] = {}
        self._asked: set[socket.socket] = set()  # without an answer so far

    def add(self, process: socket.socket) -> None:
        """Take over the connection of another process; one of another user is closed."""
        if peer_process(process)[1] != os.geteuid():
            process.close()
            return
        with self._lock:
            self._last[process] = None
            self._selector.register(process, selectors.EVENT_READ)

    def read(self) -> list[RankSample]:
        """Ask all processes, and return what is known of their ranks."""
        with self._lock:
            self._ask_all()
            alive = [one for one in self._last.values() if one is not None]
            mine = self._counters.snapshot()
            runs = {one["run"] for one in (mine, *alive)}
            # The series of a job that is over end.
            self._ended = [one for one in self._ended if one["run"] in runs]
            silent = [self._last[process] for process in self._asked]
            known: dict[tuple[str, str], RankSample] = {}
            for one in (*self._ended, *alive, mine):
                is_up = one not in self._ended and one not in silent
                for rank, samples in one["ranks"].items():
                    sample = RankSample(one["run"], one["node"], str(rank), is_up, samples)
                    known[sample.run, sample.rank] = sample
            return list(known.values())

    def close(self) -> None:
        """Leave the other processes to the next exporter, which gets what this one knows."""
        with self._lock:
            parting = pack([*self._ended, self._counters.snapshot()])
            for process in self._last:
                with suppress(OSError):
                    process.send(parting)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the connections alone."""
        for process in self._last:
            process.close()
        self._selector.close()

    def _ask_all(self) -> None:
        self._take_packets(0.0)  # last ones of processes that have left
        for process in self._last.keys() - self._asked:
            with suppress(OSError):  # its end is noticed below
                process.send(ASK)
            self._asked.add(process)
        end_s = time.monotonic() + _ANSWER_S
        while self._asked and time.monotonic() < end_s:
            self._take_packets(end_s - time.monotonic())

    def _take_packets(self, limit_s: float) -> None:
        for ready, _ in self._selector.select(limit_s):
            process: Any = ready.fileobj
            with suppress(ConnectionResetError):  # it left unasked, and its last packet follows
                self._take(process, process.recv(MOST_BYTES))

    def _take(self, process: socket.socket, packet: bytes) -> None:
        if packet:
            (self._last[process],) = unpack(packet)
            self._asked.discard(process)
            return
        self._selector.unregister(process)
        self._asked.discard(process)
        last = self._last.pop(process)
        process.close()
        self._ended += [last] if last is not None else []


def pack(snapshots: list[Snapshot]) -> bytes:
    """Return snapshots as a packet."""
    return zlib.compress(json.dumps(snapshots).encode())


def unpack(packet: bytes) -> list[Snapshot]:
    """Return the snapshots in a packet."""
    found: list[Snapshot] = json.loads(zlib.decompress(packet))
    return found
