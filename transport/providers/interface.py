"""The interface of a provider written in Python, which makes the lanes between ranks.

`docs/internals/providers.md` walks through the example, `zmq/`; `registry.py` names all.
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

    Four more methods are optional: `tend()` makes progress outside calls; `peer_has_ended()` raises
    once the peer has left or died; `owes()` returns whether the peer may lack a message, for which
    a leaving rank waits some seconds; `trouble()` returns the seconds since a message was
    delivered, and why, or None.
    """

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        """Accept a message of `header` and `payload` as a whole, or reject it.

        Args:
            header: 32 bytes.
            payload: at most the slot size of the communicator (128 KiB); may be empty. The caller
                reuses its memory after the return: copy data that is needed later.

        Returns:
            False: no room; the same message is offered again when `fd` is readable. Room must be
            bounded: a receiver that does not read must stop its senders.
        """

    def receive(self) -> Any | None:
        """Return the next message, header and payload in one readable buffer; None: not yet.

        The caller keeps a reference while it reads.
        """

    def fd(self) -> int:
        """Return the descriptor that a sleeping thread watches; always the same.

        It becomes readable when an answer False or None is outdated, and stays so until the next
        `send` or `receive`; each time is a new edge for epoll. It may be readable without a reason,
        at the cost of a call.
        """

    def close(self) -> None:
        """Free everything. Messages sent before still arrive. Idempotent."""


@dataclass(frozen=True)
class ProviderSettings:
    """The settings of a provider: its rank, the world size, and addresses.

    Attributes:
        num_lanes: lanes to every other rank.
        address: numeric address at which other ranks reach this one.
        ports: ports it may listen on; None: any.
    """

    rank: int
    world_size: int
    num_lanes: int
    address: str
    ports: range | None = None


class Provider(Protocol):
    """Makes the lanes of one communicator; constructed with its `ProviderSettings`."""

    def address(self) -> bytes:
        """Return this rank's address for all others, at most `MAX_ADDRESS_BYTES`.

        It travels authenticated, but is no secret.
        """

    def connect(
        self, addresses: Sequence[bytes], deadline: Deadline
    ) -> Mapping[int, Sequence[Lane]]:
        """Connect to all other ranks, which call this at the same time.

        Args:
            addresses: of all ranks, this one included.
            deadline: of the whole call. Call its `hopeless`, if set, several times a second while
                waiting: it also keeps the other bootstrap connections up.

        Returns:
            By rank, `num_lanes` lanes; the i-th connects to the peer's i-th.

        Raises:
            BootstrapError: names the missing ranks, and what to look at.
        """

    def close(self) -> None:
        """Close all lanes and free everything within seconds. Idempotent."""
