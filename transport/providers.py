"""Which ways there are to connect two queue pairs: a name and a function that opens one end.

A provider is an `Endpoint` class. `register` adds one; `docs/transport.md` says what else it needs.
"""

from collections.abc import Callable
from typing import Protocol

from . import _core
from .errors import InvalidArgumentError


class Endpoint(Protocol):
    """One end of a connection that is still to be made, and that its peer finds by its address."""

    @property
    def address(self) -> bytes:
        """What the other end needs to reach and to trust this one. Holds a secret: keep it safe."""

    def connect(self, remote: bytes, timeout_s: float) -> _core.Carrier:
        """Connect with the endpoint of another queue pair, which does the same.

        Raises:
            BootstrapError: the other end did not come, or did not prove itself.
        """

    def close(self) -> None:
        """Let go of everything that `connect` did not hand out. Idempotent."""


_providers: dict[str, Callable[[], Endpoint]] = {}


def register(name: str, open_endpoint: Callable[[], Endpoint]) -> None:
    """Make a provider known under a name."""
    _providers[name] = open_endpoint


def provider_names() -> tuple[str, ...]:
    """List the providers, in order of registration."""
    return tuple(_providers)


def open_endpoint(name: str) -> Endpoint:
    """Open one end of a connection.

    Raises:
        InvalidArgumentError: no provider has this name; lists those there are.
    """
    if name not in _providers:
        raise InvalidArgumentError(f"no provider {name!r}; there are: {', '.join(_providers)}")
    return _providers[name]()
