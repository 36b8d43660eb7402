"""Looks up names on threads: no signal interrupts the resolver, which may take half a minute.

These threads do not keep the launcher from ending, unlike an executor's.
"""

import _thread
import queue
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from hccl_py.transport.network.interfaces import name_to_look_up
from hccl_py.transport.threads import SIGNAL_SLICE_S

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_THREADS = 32
_LONG_S = 1e6  # longer than the resolver's own limit


def in_threads(
    call: Callable[[Item], Result], items: Sequence[Item], timeout_s: float
) -> list[Result | None]:
    """Call a function that never raises for every item; None: it took too long."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[tuple[int, Result]] = queue.SimpleQueue()
    for index in range(len(items)):
        waiting.put(index)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                index = waiting.get_nowait()
                ended.put((index, call(items[index])))

    until_s = time.monotonic() + timeout_s
    missing = len(items)
    # A signal handler's exception within Thread.start() would become another error.
    for _ in items[:MOST_THREADS]:
        _thread.start_new_thread(work, ())
    results: list[Result | None] = [None] * len(items)
    while missing and time.monotonic() < until_s:
        # A signal that arrives just before this thread sleeps does not end its sleep.
        with suppress(queue.Empty):
            index, results[index] = ended.get(timeout=SIGNAL_SLICE_S)
            missing -= 1
    return results


def addresses_of(name: str) -> list[str] | str:
    """Return the addresses of a name, or why it has none; blocks as long as the resolver."""
    try:
        entries = socket.getaddrinfo(name_to_look_up(name), None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)


def address_of(name: str, timeout_s: float = _LONG_S) -> str:
    """Return the first address of a name; OSError: there is none."""
    (found,) = in_threads(addresses_of, [name], timeout_s)
    if isinstance(found, list):
        return found[0]
    raise OSError(found or f"no name server answered within {timeout_s:g} s")
