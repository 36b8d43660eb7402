"""Where the nodes of an elastic job meet: the node of --rdzv-endpoint serves the store of all."""

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hccl_py.launcher.parts.settings import bind
from hccl_py.transport.network.interfaces import describe_target

_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 60.0
_PROBE_S, _PAUSE_S = 2.0, 0.2
_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


class NoStoreError(Exception):
    """Nobody listens at the endpoint; the message says who should."""


def is_here(host: str) -> bool:
    """Return whether a name or an address is this machine's.

    torch compares it with the machine's own name and the addresses of that name. An address of
    another interface is none of them, and then no node serves the store.
    """
    with suppress(OSError):
        bind(str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0]), 0).close()
        return True
    return False


def wait_for_store(target: tuple[str, int], timeout_s: float) -> None:
    """Wait until somebody listens there.

    Raises:
        NoStoreError: nobody does in time.
    """
    began_s = time.monotonic()
    until_s, line_s = began_s + timeout_s, began_s + _FIRST_LINE_S
    what = f"no answer from the node of --rdzv-endpoint {describe_target(target)}"
    while True:
        try:
            socket.create_connection(target, _PROBE_S).close()
        except OSError as error:
            why = f"{what} ({error.strerror or error})"
        else:
            return
        now_s = time.monotonic()
        if now_s >= until_s:
            raise NoStoreError(f"{why}, after {timeout_s:.0f} s (--connect-timeout)")
        if now_s >= line_s:
            line_s = now_s + _NEXT_LINE_S
            left_s = until_s - now_s
            say(f"{why}; trying for {left_s:.0f} s more (--connect-timeout)")
        time.sleep(_PAUSE_S)


def say(text: str) -> None:
    """Print a line of the launcher's own."""
    print(f"hccl-launch: {text}", file=sys.stderr, flush=True)


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Import torch inside: its C++ logs nothing in this process, and all in the ranks.

    It logs a page of frames for every connection that ends or is refused. The launcher says in a
    line what that means.
    """
    if _TORCH_LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_TORCH_LOG_LEVEL] = "FATAL"
    try:
        yield
    finally:
        del os.environ[_TORCH_LOG_LEVEL]
