"""The one progress thread of a process: it drives communicators and queue pairs.

It drives what no other thread waits for. A forked child makes its own.
"""

import threading

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import Stage, register

_lock = threading.Lock()
_thread: _core.ProgressThread | None = None


def progress_thread() -> _core.ProgressThread:
    """Return the thread of this process; the engine starts it when it first has work."""
    global _thread
    with _lock:
        if _thread is None:
            _thread = _core.ProgressThread()
        return _thread


def _stop() -> None:
    if _thread is not None:
        _thread.stop()


def _leave_to_parent() -> None:
    global _thread
    if _thread is not None:
        _core.leak(_thread)  # the thread is not in this process and cannot be joined
    _thread = None


register(Stage.PROGRESS_THREAD, at_exit=_stop, in_forked_child=_leave_to_parent)
