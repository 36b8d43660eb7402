"""Where the nodes of an elastic job meet: the node of --rdzv-endpoint serves the store of all."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hccl_py.launcher.own_lines import keep_trying
from hccl_py.launcher.parts.settings import bind
from hccl_py.transport.network.interfaces import describe_target

_PROBE_S = 2.0
_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"


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
    """Wait until somebody listens there; raise TimeoutError, whose message says who should."""
    keep_trying(
        lambda: socket.create_connection(target, _PROBE_S).close(),
        f"no answer from the node of --rdzv-endpoint {describe_target(target)}",
        timeout_s,
    )


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
