"""The providers by name, for queue pairs and for communicators.

A queue pair is connected by an `Endpoint`, a communicator's ranks by HCCL_TRANSPORT:

| value | inside a node | between nodes |
|---|---|---|
| `auto` (default) | shared memory | RDMA where every rank has a port, else TCP |
| `tcp` | TCP | TCP |
| `verbs` | shared memory | queue pairs of an RDMA device, see `verbs/` |
| `verbs_over_tcp` | software queue pairs over TCP | software queue pairs over TCP |
| `zmq` | ZeroMQ with CURVE | ZeroMQ with CURVE |
| `module:Class` | that provider | that provider |

Those of Python implement `interface.py`; the others are C++. `register` adds an endpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.providers.interface import Provider, Site

if TYPE_CHECKING:  # the launcher checks names and settings without loading the engine
    from hccl_py.transport import _core

VARIABLE = "HCCL_TRANSPORT"
AUTO = "auto"
TCP = "tcp"
VERBS = "verbs"
VERBS_OVER_TCP = "verbs_over_tcp"
_IN_CPP = AUTO, TCP, VERBS, VERBS_OVER_TCP
_IN_PYTHON = {"zmq": "hccl_py.transport.providers.zmq.provider:ZmqProvider"}


class Endpoint(Protocol):
    """One end of a connection that is still to be made, and that its peer finds by its address."""

    @property
    def address(self) -> bytes:
        """What the other end needs to reach and to trust this one. Holds a secret: keep it safe."""

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect with the endpoint of another queue pair, which does the same.

        Raises:
            BootstrapError: the other end did not come, or did not prove itself.
        """

    def close(self) -> None:
        """Release everything that `connect` did not hand out. Idempotent."""


_providers: dict[str, Callable[[], Endpoint]] = {}


def register(name: str, open_endpoint: Callable[[], Endpoint]) -> None:
    """Make a provider known under a name."""
    _providers[name] = open_endpoint


def endpoint_maker(name: str) -> Callable[[], Endpoint]:
    """Return what opens one end of a connection; InvalidArgumentError: no such provider."""
    if name not in _providers:
        raise InvalidArgumentError(f"no provider {name!r}; there are: {', '.join(_providers)}")
    return _providers[name]


def check_transport(name: str) -> str:
    """Return a value of HCCL_TRANSPORT; InvalidArgumentError: there is no such provider."""
    known = *_IN_CPP, *_IN_PYTHON
    if name not in known and ":" not in name:
        raise InvalidArgumentError(
            f"{VARIABLE}={name}: expected one of {', '.join(known)}, or module:Class of a provider "
            "of your own"
        )
    return name


def provider_class(name: str) -> Callable[[Site], Provider] | None:
    """Load what makes a provider; None for those of C++. InvalidArgumentError: no such class."""
    if name in _IN_CPP:
        return None
    module, _, attribute = _IN_PYTHON.get(name, name).partition(":")
    try:
        made_by = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{VARIABLE}={name}: {error}") from error
    return cast("Callable[[Site], Provider]", made_by)
