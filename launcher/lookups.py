"""Names are looked up on threads: no signal interrupts the resolver, which may take half a minute.

The threads are daemons. Those of an executor would keep the launcher from ending.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from hccl_py.transport.network.interfaces import name_to_look_up

Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST_THREADS = 32


def in_threads(
    call: Callable[[Item], Result], items: Sequence[Item], timeout_s: float
) -> list[Result | None]:
    """Call a function, which raises nothing, for every item; None where it took too long."""
    results: list[Result | None] = [None] * len(items)
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(items)):
        waiting.put(index)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                index = waiting.get_nowait()
                results[index] = call(items[index])

    until_s = time.monotonic() + timeout_s
    threads = [threading.Thread(target=work, daemon=True) for _ in items[:_MOST_THREADS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return results


def addresses_of(name: str) -> list[str] | str:
    """Return the addresses of a name, or why it has none; blocks as long as the resolver."""
    try:
        entries = socket.getaddrinfo(name_to_look_up(name), None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(entry[4][0]) for entry in entries))
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error)


def address_of(name: str, timeout_s: float = threading.TIMEOUT_MAX) -> str:
    """Return the first address of a name; OSError says why there is none."""
    (found,) = in_threads(addresses_of, [name], timeout_s)
    if isinstance(found, list):
        return found[0]
    raise OSError(found or f"no name server answered within {timeout_s:g} s")
