"""The providers by name, for queue pairs and for communicators.

A queue pair is connected by a `QueuePairEndpoint`, a communicator's ranks by HCCL_TRANSPORT
(`network/transports.py`).
Python providers implement `interface.py`; the others are C++. `register` adds an endpoint.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.transports import IN_CPP, IN_PYTHON, VARIABLE
from hccl_py.transport.providers.interface import Provider, ProviderSettings

if TYPE_CHECKING:  # the launcher checks names and settings without loading the engine
    from hccl_py.transport import _core


class QueuePairEndpoint(Protocol):
    """One end of a future connection, which its peer finds by its address."""

    @property
    def address(self) -> bytes:
        """The address of this end, for the other end. It contains a secret: keep it safe."""

    def connect(self, remote: bytes, timeout_s: float) -> _core.UnderlyingLane:
        """Connect to the endpoint of another queue pair, which does the same.

        Raises:
            BootstrapError: the peer did not connect, or did not authenticate.
        """

    def close(self) -> None:
        """Release everything that `connect` did not return. Idempotent."""


_providers: dict[str, Callable[[], QueuePairEndpoint]] = {}


def register(name: str, open_endpoint: Callable[[], QueuePairEndpoint]) -> None:
    """Register a provider under a name."""
    _providers[name] = open_endpoint


def endpoint_maker(name: str) -> Callable[[], QueuePairEndpoint]:
    """Return the function that opens an endpoint; InvalidArgumentError: no such provider."""
    if name not in _providers:
        raise InvalidArgumentError(f"no provider {name!r}; there are: {', '.join(_providers)}")
    return _providers[name]


def provider_class(name: str) -> Callable[[ProviderSettings], Provider] | None:
    """Load a provider's class; None for C++ providers. InvalidArgumentError: no such class."""
    if name in IN_CPP:
        return None
    module, _, attribute = IN_PYTHON.get(name, name).partition(":")
    try:
        made_by = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"{VARIABLE}={name}: {error}") from error
    return cast("Callable[[ProviderSettings], Provider]", made_by)
