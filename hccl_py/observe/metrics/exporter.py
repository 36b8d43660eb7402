"""One process of a node exports the metrics of all: one target to scrape, whichever ranks run.

Each rank tries to bind one abstract Unix socket, named after user and settings. The process that
succeeds exports, and the others connect to it and answer. When it ends, another one takes over.
Processes of this user's other jobs with the same settings join it too; the label `run` tells jobs
apart.

A process that leaves sends its last counters, and an exporter that leaves hands on what it knows.
"""

import logging
import os
import select
import socket
import threading
import time
from contextlib import closing, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING

from hccl_py.observe import flight_recorder
from hccl_py.observe.metrics.counters import ProcessCounters
from hccl_py.observe.metrics.node import ASK, MOST_BYTES, NodeRanks, Snapshot, pack, unpack
from hccl_py.observe.metrics.settings import MetricsSettings, read_settings
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.sockets import peer_process
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import start_without_signals

if TYPE_CHECKING:
    from hccl_py.observe.metrics.exposition import Exposition

logger = logging.getLogger("hccl_py")

_WRITE_EVERY_S = 5.0
_RETRY_S = 1.0
_END_S = 3.0


class Exporter:
    """The metrics of this process: exported here, or handed to the process that exports."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._thread: threading.Thread | None = None
        self._counters = ProcessCounters()
        self._stop = -1  # an eventfd
        self._socket: socket.socket | None = None
        self._node: NodeRanks | None = None
        self._exposition: Exposition | None = None
        self._ended: list[Snapshot] = []
        self._last_warning = ""

    def start(self) -> None:
        """Export from now on, if the settings ask for it."""
        settings = read_settings()
        with self._starting:
            if self._thread is not None or not settings.is_on:
                return
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(
                target=self._run, args=(settings,), name="hccl-metrics", daemon=True
            )
            flight_recorder.BEFORE_CLOSE.append(self._counters.count)
            try:
                start_without_signals(self._thread)
            except BootstrapError as error:  # optional for the communicator
                logger.warning("no metrics: %s", error)

    def close(self) -> None:
        """At exit: hand on the last counters."""
        if self._thread is not None and self._thread.is_alive():
            os.eventfd_write(self._stop, 1)
            self._thread.join(_END_S)

    def leave_to_parent(self) -> None:
        """In a forked child: close copies of the parent's sockets, which would outlive it."""
        for part in (self._exposition, self._node):
            if part is not None:
                part.close_in_child()
        if self._socket is not None:
            self._socket.close()
        if self._thread is not None:
            os.close(self._stop)
            flight_recorder.BEFORE_CLOSE.remove(self._counters.count)
        self._starting = threading.Lock()
        self._reset()

    def _run(self, settings: MetricsSettings) -> None:
        where = f"{settings.host} {settings.port} {settings.file}"
        digest = blake2b(where.encode(errors="surrogateescape"), digest_size=8).hexdigest()
        name = f"\0hccl-metrics-{os.geteuid()}-{digest}"
        while not self._is_stopped(0.0):
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as self._socket:
                    self._take_part(settings, name, self._socket)
            except Exception as error:
                self._warn(f"{error} (HCCL_METRICS_PORT, HCCL_METRICS_FILE)")
            self._is_stopped(_RETRY_S)

    def _take_part(self, settings: MetricsSettings, name: str, end: socket.socket) -> None:
        try:
            end.bind(name)
        except OSError:
            end.connect(name)
            if peer_process(end)[1] != os.geteuid():
                raise PermissionError(f"another user has the socket {name[1:]}") from None
            self._answer(end)
        else:
            end.listen(socket.SOMAXCONN)
            self._export(settings, end)

    def _export(self, settings: MetricsSettings, listener: socket.socket) -> None:
        from hccl_py.observe.metrics.exposition import Exposition

        node = self._node = NodeRanks(self._counters, self._ended)
        with closing(node), closing(Exposition(settings, node.read)) as self._exposition:
            write_s = 0.0
            while not self._is_stopped(max(0.0, write_s - time.monotonic()), listener):
                if time.monotonic() >= write_s:
                    write_s = time.monotonic() + _WRITE_EVERY_S
                    self._write(self._exposition)
                elif select.select([listener], [], [], 0)[0]:
                    node.add(listener.accept()[0])
            self._write(self._exposition)

    def _write(self, exposition: "Exposition") -> None:
        try:
            exposition.write()
        except OSError as error:
            self._warn(str(error))

    def _answer(self, exporter: socket.socket) -> None:
        """Send counters when asked, until this process or the exporter ends."""
        while not self._is_stopped(None, exporter):
            packet = exporter.recv(MOST_BYTES)
            if not packet:
                return
            if packet == ASK:
                exporter.send(pack([self._counters.snapshot()]))
            else:
                self._ended = unpack(packet)
        with suppress(OSError):
            exporter.send(pack([self._counters.snapshot()]))

    def _is_stopped(self, limit_s: float | None, *awaited: socket.socket) -> bool:
        """Wait for a socket, the end of this process or the limit; return whether it ends."""
        poll = select.poll()
        for one in (self._stop, *(each.fileno() for each in awaited)):
            poll.register(one, select.POLLIN)
        ready = poll.poll(None if limit_s is None else 1000 * limit_s)
        return any(descriptor == self._stop for descriptor, _ in ready)

    def _warn(self, problem: str) -> None:
        if problem != self._last_warning:
            logger.warning("metrics: %s", problem)
            self._last_warning = problem


EXPORTER = Exporter()
"""One per process."""

register(
    LifecycleStage.FLIGHT_RECORDERS,
    at_exit=EXPORTER.close,
    in_forked_child=EXPORTER.leave_to_parent,
)
