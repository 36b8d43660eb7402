"""Makes all connections of a rank at the start, or fails with a message that says which is missing.

Of each pair the higher rank dials. Ranks of one node share one Unix connection; ranks of different
nodes share, over each path, a TCP control connection and one TCP connection per lane.
"""

import socket
from collections.abc import Sequence

from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.connector import Connector, Key, Pace
from hccl_py.transport.bootstrap.handshake import CONTROL, Party
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import stranger_limit

_MAX_PEERS_IN_MESSAGE = 8
_FIRST_RETRY_S = 0.002
_LONGEST_RETRY_S = 0.1
_LONGEST_TURN_S = 0.1
"""Where it has to be asked now and then whether waiting still makes sense."""


class FullMesh:
    """Makes all connections of one rank."""

    def __init__(
        self, party: Party, listeners: Sequence[socket.socket], deadline: Deadline
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            party: this rank and its peers.
            listeners: listening, non-blocking sockets; stay with the caller.
            deadline: for everything.
        """
        self._party = party
        self._deadline = deadline
        self._listeners = listeners
        self._awaited: set[Key] = set()
        for member in party.members:
            if member.rank != party.rank:
                self._awaited |= _keys(party, member.rank)
        self._finished: dict[Key, PendingConnection] = {}
        num_inbound = sum(key.rank > party.rank for key in self._awaited)
        max_strangers = num_inbound + stranger_limit()
        # No limit to an attempt: a rank may be slow, and there is a deadline for it all.
        pace = Pace(_FIRST_RETRY_S, _LONGEST_RETRY_S, float("inf"), max_strangers)
        self._connector = Connector(party, pace, self)

    def close(self) -> None:
        """Close all connections that were not detached. Idempotent."""
        self._connector.close()
        for pending in self._finished.values():
            pending.close()

    def run(self) -> dict[Key, PendingConnection]:
        """Connect to every peer.

        Returns:
            One finished pending per connection. They stay owned by this object until detached.

        Raises:
            BootstrapError: a peer rejected, failed or did not come; everything is to be closed.
        """
        for listener in self._listeners:
            self._connector.listen(listener)
        for key in sorted(self._awaited):
            if key.rank < self._party.rank:
                self._connector.dial(key)
        while self._awaited:
            if self._deadline.expired:
                raise BootstrapError(self._timeout_message())
            self._connector.run_once(self._longest_turn_s())
        self._connector.drop_strangers("it had not proved itself when all ranks were connected")
        return self._finished

    def _longest_turn_s(self) -> float:
        if self._deadline.hopeless is None:
            return self._deadline.remaining_s
        reason = self._deadline.hopeless()
        if reason:
            raise BootstrapError(f"rank {self._party.rank}: gave up to connect: {reason}")
        return min(_LONGEST_TURN_S, self._deadline.remaining_s)

    # Owner of the connector.

    def is_expected(self, key: Key) -> bool:
        """Say whether this connection is still to come."""
        return key in self._awaited

    def connected(self, key: Key, pending: PendingConnection) -> None:
        """Keep a finished connection."""
        if key not in self._awaited:
            pending.close()
            self.failed(key, "it connected twice", BootstrapError())
        self._finished[key] = pending
        self._awaited.remove(key)

    def failed(self, key: Key, what: str, cause: Exception) -> None:
        """Give up: at the start every connection has to come about."""
        peer = self._party.members[key.rank]
        raise BootstrapError(
            f"rank {self._party.rank}: no connection with {peer} at {self._where(key)}: {key}: "
            f"{what}; look at the log of rank {peer.rank} first{self._connector.rejections()}"
        ) from cause

    def out_of_descriptors(self, cause: OSError) -> None:
        """Give up."""
        raise BootstrapError(
            f"rank {self._party.rank}: no descriptor left for a connection; see ulimit -n"
        ) from cause

    # Errors.

    def _where(self, key: Key) -> str:
        target = describe_target(self._connector.target(key))
        if self._party.is_local(key.rank):
            return target
        interface = self._party.route(key.rank, key.path)[0].interface
        return f"{target} through {interface}" if interface else target

    def _timeout_message(self) -> str:
        steps = self._connector.waiting_at()
        by_peer: dict[int, list[Key]] = {}
        for key in sorted(self._awaited):
            by_peer.setdefault(key.rank, []).append(key)
        shown = []
        for rank, keys in list(by_peer.items())[:_MAX_PEERS_IN_MESSAGE]:
            absent = "never connected" if rank > self._party.rank else "did not answer"
            states = [
                f"{key} {f'waits at {steps[key]}' if key in steps else absent}" for key in keys
            ]
            where = ", ".join(dict.fromkeys(map(self._where, keys)))
            shown.append(f"{self._party.members[rank]} at {where}: {', '.join(states)}")
        if len(by_peer) > len(shown):
            shown.append(f"and {len(by_peer) - len(shown)} more ranks")
        return (
            f"rank {self._party.rank}: connections are missing {self._deadline}: "
            f"{'; '.join(shown)}; look at the logs of those ranks, and whether a firewall or the "
            f"wrong interface (HCCL_SOCKET_IFNAME) is in the way{self._connector.rejections()}"
        )


def _keys(party: Party, rank: int) -> set[Key]:
    """Return the connections that this rank and another one share."""
    if party.is_local(rank):
        return {Key(rank, CONTROL, 0)}
    return {
        Key(rank, index, path)
        for index in range(1 + party.num_lanes)
        for path in range(party.num_paths(rank))
    }
