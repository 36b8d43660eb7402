"""Loads the emulation of the network between nodes that HCCL_EMULATED_NETWORK names.

The variable is `MODULE:ADDRESS`: the module has the functions of `Emulation`, the address is for
the module alone. So the core imports no emulation, and works without one.
"""

import os
import socket
from importlib import import_module
from typing import Any, Protocol, cast

from hccl_py.transport.network.settings import EMULATED_NETWORK


class Emulation(Protocol):
    """The functions of the module."""

    def carry(self, dialled: socket.socket, from_node: str, to_node: str) -> socket.socket:
        """Put the network into a connection that is being made between two nodes.

        Args:
            dialled: a non-blocking TCP socket; the network takes it over, also where this raises.
            from_node: HCCL_NODE_ID of this rank.
            to_node: that of the rank which was dialled.

        Returns:
            This rank's new end, connected and non-blocking: what goes in comes out of `dialled`.

        Raises:
            ConnectionRefusedError: nobody listens there, or not yet.
            BootstrapError: the network's process is gone.
        """

    def follow(self, coordination: Any) -> None:
        """Report the calls of this process from now on, on the thread of a `Coordination`."""

    def note_step(self, *_: object) -> None:
        """Report that an optimizer has finished a step; a hook of torch's optimizers."""


def emulation() -> Emulation | None:
    """Return what plays the network of this process; None: nodes have a real one."""
    named = os.environ.get(EMULATED_NETWORK)
    return cast(Emulation, import_module(named.partition(":")[0])) if named else None


def address() -> str:
    """Return the part of the variable that is for the module."""
    return os.environ[EMULATED_NETWORK].partition(":")[2]
