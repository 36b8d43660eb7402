"""The progress thread of a process: it drives work that no other thread waits for."""

from threading import Lock

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import LifecycleStage, register

_thread: _core.ProgressThread | None = None
_lock = Lock()


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
    global _thread, _lock
    _lock = Lock()  # another thread may have held it
    if _thread is not None:
        _core.leak(_thread)  # the thread is not in this process, so it cannot be joined
        _thread = None


register(LifecycleStage.PROGRESS_THREAD, at_exit=_stop, in_forked_child=_leave_to_parent)
