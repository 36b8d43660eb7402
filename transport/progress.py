"""The progress thread of a process: it drives work that no other thread waits for."""

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import LifecycleStage, register

_thread = _core.ProgressThread()


def progress_thread() -> _core.ProgressThread:
    """Return the thread of this process; the engine starts it when it first has work."""
    return _thread


def _leave_to_parent() -> None:
    global _thread
    _core.leak(_thread)  # the thread is not in this process, so it cannot be joined
    _thread = _core.ProgressThread()


register(
    LifecycleStage.PROGRESS_THREAD,
    at_exit=lambda: progress_thread().stop(),
    in_forked_child=_leave_to_parent,
)
