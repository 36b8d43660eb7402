"""The life of a communicator: its threads, its close, and its state in a forked child."""

import contextlib
import logging
import threading
import weakref

from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.calls.work import release_finished
from hccl_py.diagnosis.exceptions import (
    ends_by_exception,
    exception_at_exit,
    handled_error,
    one_line,
)
from hccl_py.diagnosis.reporter import DIAGNOSIS_TIMEOUT_S
from hccl_py.engine import Connected
from hccl_py.observe.metrics.exporter import EXPORTER
from hccl_py.progress_file import PROGRESS
from hccl_py.transport import _core
from hccl_py.transport._core import Cause
from hccl_py.transport.arguments import shown
from hccl_py.transport.network.emulated import emulation
from hccl_py.transport.process_lifecycle import LifecycleStage, register

logger = logging.getLogger("hccl_py")

_CLOSING_SLICE_S = 0.05
_FINISHING_NEWS_S = 10.0  # until close() logs the calls that it waits for


class Lifetime:
    """All that a communicator must end. Any thread may call the methods."""

    def __init__(self, state: CommunicatorState, connected: Connected) -> None:
        """Start to watch the other ranks."""
        core, mesh, self._sockets, self._repair = connected
        self._state = state
        self._provider = mesh.provider
        self._closing = threading.RLock()  # a signal handler may close inside close()
        # Their threads keep the engine alive, but must not outlive an unreferenced communicator.
        threads = contextlib.ExitStack()  # from last to first
        for part in (state.reporter, state.coordination, self._repair):
            if part is not None:
                threads.callback(part.close)
        self._threads = threads
        self._dropped = weakref.finalize(self, threads.close)
        self._dropped.atexit = False
        EXPORTER.start()
        if state.coordination is not None:
            core.set_diagnosis_timeout(DIAGNOSIS_TIMEOUT_S)
            state.coordination.attach(state.reporter)
            PROGRESS.follow(state.coordination)
            if emulated := emulation():
                emulated.follow(state.coordination)
        _open.add(self)

    def abort(self, reason: object, cause: Cause) -> None:
        """End every running call on all ranks; return when they know, or after 1.5 s."""
        core = self._state.core
        if core is not None:
            text = reason if isinstance(reason, str) else shown(reason)
            core.abort(one_line(text), cause)
            self._state.reporter.await_diagnosis()

    def leave_by(self, error: str) -> None:
        """Report the exception that ends this rank to all, unless all raise it."""
        core = self._state.core
        if core is not None and not core.failed():
            self.abort(error, Cause.UNCAUGHT_EXCEPTION)

    def close(self) -> None:
        """Finish all started calls, say goodbye and free everything; see `Communicator.close`."""
        core = self._state.core
        while core is not None and not self._closing.acquire(timeout=_CLOSING_SLICE_S):
            if core.drives():  # a signal handler inside a call, which the other thread ends
                return
            core = self._state.core
        if core is None:
            return
        try:
            if self._state.core is None:  # another thread has closed it meanwhile
                return
            try:
                self._finish_started(core)
            finally:
                self._close(core)
        finally:
            self._closing.release()

    def _finish_started(self, core: _core.Communicator) -> None:
        if ends_by_exception() or core.failed():
            return
        news_s = _FINISHING_NEWS_S
        while not core.finish_unawaited(news_s):
            logger.warning("%s", self._state.reporter.unfinished())
            news_s *= 2
        failure = core.failure()
        if failure is not None:
            logger.warning("close(): %s", self._state.errors.of_failure(failure))

    def _close(self, core: _core.Communicator) -> None:
        _open.discard(self)
        self._state.reporter.await_diagnosis()
        self._state.recorder.close()
        if self._repair is not None and not core.failed():
            self._repair.settle()
        self._dropped.detach()  # it would do nothing while the process exits
        self._threads.close()
        self._repair = None
        try:
            core.close(handled_error(core), self._state.goes_on)
        finally:  # Ctrl-C ends the wait for slow peers, and raises
            if self._provider is not None:
                self._provider.close()
            self._state.core = None
            release_finished()

    def leave_to_parent(self) -> None:
        """In a forked child: drop the parent's objects and close the copies of its descriptors."""
        if self._state.core is not None:
            self._state.core.end_windows()  # a put writes into the memory of peers directly
        _core.leak(self._state.core)
        if self._provider is not None:
            _core.leak(self._provider)
            self._provider = None
        self._state.core, self._state.forked = None, True
        # Otherwise peers would not notice the parent's death while this child lives.
        self._sockets.close_copies()
        if self._repair is not None:
            _core.leak(self._repair)
            self._repair.close_in_child()
            self._repair = None
        if self._state.coordination is not None:
            self._state.coordination.close_in_child()


_open: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


def _report_exception_at_exit() -> None:
    error = exception_at_exit()
    if not error:
        return
    for lifetime in list(_open):
        with contextlib.suppress(Exception):
            lifetime.leave_by(error)


def _close_all() -> None:
    for lifetime in list(_open):
        with contextlib.suppress(Exception):
            lifetime.close()


def _leave_to_parent() -> None:
    for lifetime in list(_open):
        lifetime.leave_to_parent()
    _open.clear()


register(LifecycleStage.EXCEPTION, at_exit=_report_exception_at_exit)
register(LifecycleStage.COMMUNICATORS, at_exit=_close_all, in_forked_child=_leave_to_parent)
