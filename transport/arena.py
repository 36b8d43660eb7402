"""The arena of this process: registered memory that peers on the node map when they connect."""

import logging
import os
import threading

from hccl_py.transport import _core
from hccl_py.transport.process_lifecycle import LifecycleStage, register

from .errors import InvalidArgumentError

logger = logging.getLogger("hccl_py")

VARIABLE = "HCCL_ARENA_BYTES"
"""Name of the environment variable: address space to reserve, 0 for no registered memory."""

_MOST_BYTES = 1 << 47  # of addresses
_LARGEST_DEFAULT = 256 << 30
# Every rank of a node maps the arenas of all: 128 ranks have 128 TiB of addresses for 128 * 128.

_arena: _core.Arena | None = None
_lock = threading.Lock()


def arena_of_this_process() -> _core.Arena:
    """Return the arena, created at first use; it takes address space but no memory.

    Raises:
        InvalidArgumentError: HCCL_ARENA_BYTES is not a number.
    """
    global _arena
    with _lock:
        if _arena is None:
            wanted = _wanted_bytes()
            _arena = _core.Arena.create(wanted)
            if wanted and not _arena.num_bytes():
                why = _arena.unavailable()
                logger.warning(f"hccl-py copies all messages, without registered memory: {why}")
        return _arena


def _wanted_bytes() -> int:
    text = os.environ.get(VARIABLE)
    if text is None:
        num_pages = os.sysconf("SC_PHYS_PAGES")  # negative where a sandbox forbids `sysinfo`
        return min(max(num_pages, 0) * os.sysconf("SC_PAGE_SIZE"), _LARGEST_DEFAULT)
    if not text.isdecimal() or int(text[:20]) > _MOST_BYTES:
        raise InvalidArgumentError(f"{VARIABLE}: expected a number of bytes, got {text!r}")
    return int(text)


def _forget_after_fork() -> None:
    # The parent keeps the memory; this process registers its own.
    global _arena, _lock
    if _arena is not None:
        _core.leak(_arena)
    _arena = None
    _lock = threading.Lock()


register(LifecycleStage.REGISTERED_MEMORY, in_forked_child=_forget_after_fork)
