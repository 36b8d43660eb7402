"""Loads the emulated network between nodes that HCCL_EMULATED_NETWORK names.

The variable is `MODULE:ADDRESS`: the module has the functions of `Emulation`, and only the module
reads the address. So the core imports no emulation, and works without one.
"""

import os
import socket
from importlib import import_module
from typing import Any, Protocol, cast

from hccl_py.transport.network.settings import EMULATED_NETWORK


class Emulation(Protocol):
    """The functions of the module."""

    def carry(self, dialled: socket.socket, from_node: str, to_node: str) -> socket.socket:
        """Route a new connection between two nodes through the network.

        Args:
            dialled: a non-blocking TCP socket; the network takes it over, even if this raises.
            from_node: HCCL_NODE_ID of this rank.
            to_node: HCCL_NODE_ID of the dialled rank.

        Returns:
            This rank's new end, connected and non-blocking, whose bytes leave through `dialled`.

        Raises:
            ConnectionRefusedError: no process listens there yet.
            BootstrapError: the network's process is gone.
        """

    def follow(self, coordination: Any) -> None:
        """Start to report this process's calls, on the thread of a `Coordination`."""

    def note_step(self, *_: object) -> None:
        """Report a finished optimizer step; a hook of torch's optimizers."""


def emulation() -> Emulation | None:
    """Return the emulation of this process's network; None: the network is real."""
    named = os.environ.get(EMULATED_NETWORK)
    return cast(Emulation, import_module(named.partition(":")[0])) if named else None


def address() -> str:
    """Return the module's part of the variable."""
    return os.environ[EMULATED_NETWORK].partition(":")[2]
