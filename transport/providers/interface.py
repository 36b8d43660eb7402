"""The interface of a provider written in Python: lanes between ranks, however they are made.

`docs/internals/providers.md` walks through the one that comes along, `zmq/`; `registry.py` names
all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hccl_py.transport.deadline import Deadline

MAX_ADDRESS_BYTES = 1024


class Lane(Protocol):
    """One ordered, reliable stream of messages to another rank.

    Messages arrive once, whole and in the order sent. The thread that drives the communicator calls
    the methods, one at a time, with the GIL; none may block. An exception ends the communicator,
    and its text is in the error of every rank; a later call raises it again.

    It may have four more methods: `tend()` goes on while no call does; `peer_has_ended()` says
    that the peer has left or died; `owes()` returns whether the peer may lack a message, for
    which a rank that leaves waits some seconds; `trouble()` returns for how many seconds nothing
    came through, and why, or None.
    """

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        """Take a message of `header` and `payload`, or none of it.

        Args:
            header: 32 bytes.
            payload: at most the slot size of the communicator (128 KiB); may be empty. It is the
                caller's memory and changes after the return: copy what is needed later.

        Returns:
            False: no room now; the same message is offered again when `fd` says so. Room must be
            bounded: a receiver that does not read has to stop its senders.
        """

    def receive(self) -> Any | None:
        """Return the next message, header and payload in one readable buffer; None: not yet.

        The caller keeps a reference for as long as it reads.
        """

    def fd(self) -> int:
        """Return the descriptor that a sleeper watches; always the same.

        It is readable from the moment on at which an answer False or None is outdated, until the
        next `send` or `receive`, and each time it becomes so anew is an edge for epoll. To be
        readable without a reason is allowed and costs a call.
        """

    def close(self) -> None:
        """Free everything. Messages that were sent before still arrive. Idempotent."""


@dataclass(frozen=True)
class ProviderSettings:
    """Where a provider makes its lanes: as which rank of how many.

    Attributes:
        num_lanes: lanes to every other rank.
        address: numeric address on which other ranks reach this one.
        ports: where it may listen; None: anywhere.
    """

    rank: int
    world_size: int
    num_lanes: int
    address: str
    ports: range | None = None


class Provider(Protocol):
    """Makes the lanes of one communicator; constructed with its `ProviderSettings`."""

    def address(self) -> bytes:
        """Return what all other ranks have to know, at most `MAX_ADDRESS_BYTES`.

        It travels authenticated, but is no secret.
        """

    def connect(
        self, addresses: Sequence[bytes], deadline: Deadline
    ) -> Mapping[int, Sequence[Lane]]:
        """Connect to all other ranks, which do so at the same time.

        Args:
            addresses: of all ranks, this one included.
            deadline: for all of it. Ask its `hopeless`, where there is one, several times a second
                while you wait: the other connections of the start are kept up in it.

        Returns:
            By rank, `num_lanes` lanes; the i-th meets the peer's i-th.

        Raises:
            BootstrapError: says which ranks are missing, and what to look at.
        """

    def close(self) -> None:
        """Close all lanes and free everything within seconds. Idempotent."""
