"""The watch of this process over memory registered with devices (csrc/base/memory/)."""

import threading

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import LifecycleStage, register

_watch: _core.MemoryWatch | None = None
_lock = threading.Lock()


def watch_of_this_process() -> _core.MemoryWatch | None:
    """Return the watch, started at first use; None where the system has none."""
    global _watch
    with _lock:
        if _watch is None:
            _watch = _core.MemoryWatch.start()
        return None if _watch.unavailable() else _watch


def _forget_after_fork() -> None:
    # The parent owns its thread and the watched memory.
    global _watch, _lock
    _watch = None
    _lock = threading.Lock()


register(LifecycleStage.REGISTERED_MEMORY, in_forked_child=_forget_after_fork)
