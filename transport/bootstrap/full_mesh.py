"""Makes the first connections of a rank, or fails with a message that says which is missing.

Of each pair the higher rank dials. Ranks of one node share one Unix connection; ranks of different
nodes share, over each path, a TCP control connection. Data lanes follow when they are first needed
(`reconnect.py`); only those of queue pairs are connected here.

The control connections are a full mesh: a rank notices by them within milliseconds that another one
ended, and whether it said goodbye, even if the two never exchange data.
"""

import math
import socket
import time
from collections.abc import Sequence
from itertools import groupby, islice
from selectors import DefaultSelector

from hccl_py.transport.bootstrap.connection import NotNowError, PendingConnection
from hccl_py.transport.bootstrap.connector import Connector
from hccl_py.transport.bootstrap.party import CONTROL, Key, Party
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import stranger_limit

_MAX_PEERS_IN_MESSAGE = 8
_LONGEST_TURN_S = 0.1
"""How often a deadline that can be hopeless is asked."""


class FullMesh(Connector):
    """Makes all connections of one rank."""

    FIRST_RETRY_S = 0.002
    LONGEST_RETRY_S = 0.1
    # No limit to an attempt: a rank may be slow, and there is a deadline for it all.
    ATTEMPT_S = math.inf

    def __init__(
        self, party: Party, listeners: Sequence[socket.socket], deadline: Deadline
    ) -> None:
        """Prepare; `run` does the work. The listening sockets stay the caller's."""
        peers = (member.rank for member in party.members if member.rank != party.rank)
        self._awaited = {key for rank in peers for key in _keys(party, rank)}
        self._finished: dict[Key, PendingConnection] = {}
        self._deadline = deadline
        num_inbound = sum(key.rank > party.rank for key in self._awaited)
        max_strangers = num_inbound + stranger_limit()
        super().__init__(party, listeners, max_strangers, DefaultSelector())

    def close(self) -> None:
        """Close all connections that were not detached. Idempotent."""
        self._close_connections()
        self._selector.close()
        for pending in self._finished.values():
            pending.close()

    def run(self) -> dict[Key, PendingConnection]:
        """Connect to every peer; what is returned stays owned by this object until detached.

        BootstrapError: a peer rejected, failed or did not come; everything is to be closed.
        """
        self._listen()
        for key in sorted(self._awaited):
            if key.rank < self._party.rank:
                self._dial(key)
        while self._awaited:
            if self._deadline.expired:
                raise BootstrapError(self._timeout_message())
            until_s = min(time.monotonic() + self._longest_turn_s(), self.next_s())
            for ready, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
                ready.data()
            self.tick()
        for pending in tuple(self._strangers):
            reason = "it had not proved itself when all ranks were connected"
            self._drop_stranger(pending, reason)
        return self._finished

    def _longest_turn_s(self) -> float:
        if self._deadline.hopeless is None:
            return self._deadline.remaining_s
        reason = self._deadline.hopeless()
        if reason:
            raise BootstrapError(f"rank {self._party.rank}: gave up to connect: {reason}")
        return min(_LONGEST_TURN_S, self._deadline.remaining_s)

    def _is_expected(self, key: Key) -> bool:
        if self._party.lanes_later and key.index != CONTROL:
            raise NotNowError("a lane of a rank that is connected to all others already")
        return key in self._awaited and key.rank > self._party.rank

    def _connected(self, key: Key, pending: PendingConnection) -> None:
        if key not in self._awaited:
            pending.close()
            self._failed(key, "it connected twice", BootstrapError())
        self._finished[key] = pending
        self._awaited.remove(key)

    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Give up: at the start every connection has to come about."""
        peer = self._party.members[key.rank]
        raise BootstrapError(
            f"rank {self._party.rank}: no connection with {peer} at {self._where(key)}: {key}: "
            f"{what}; look at the log of rank {peer.rank} first{self._rejections.summary()}"
        ) from cause

    def _out_of_descriptors(self, cause: OSError) -> None:
        raise BootstrapError(
            f"rank {self._party.rank}: no descriptor left for a connection; see ulimit -n"
        ) from cause

    def _where(self, key: Key) -> str:
        target = describe_target(self._target(key))
        if self._party.is_local(key.rank):
            return target
        interface = self._party.route(key.rank, key.path)[0].interface
        return f"{target} through {interface}" if interface else target

    def _timeout_message(self) -> str:
        steps = {pending.key: f"waits at {pending.step}" for pending in self._pending}
        groups = groupby(sorted(self._awaited), lambda key: key.rank)
        missing = {rank: tuple(keys) for rank, keys in groups}
        shown = []
        for rank, keys in islice(missing.items(), _MAX_PEERS_IN_MESSAGE):
            absent = "never connected" if rank > self._party.rank else "did not answer"
            states = ", ".join(f"{key} {steps.get(key, absent)}" for key in keys)
            where = ", ".join(dict.fromkeys(map(self._where, keys)))
            shown.append(f"{self._party.members[rank]} at {where}: {states}")
        if len(missing) > len(shown):
            shown.append(f"and {len(missing) - len(shown)} more ranks")
        return (
            f"rank {self._party.rank}: connections are missing {self._deadline}: "
            f"{'; '.join(shown)}; look at the logs of those ranks, and whether a firewall or the "
            f"wrong interface (HCCL_SOCKET_IFNAME) is in the way{self._rejections.summary()}"
        )


def _keys(party: Party, rank: int) -> list[Key]:
    if party.is_local(rank):
        return [Key(rank, CONTROL, 0)]
    paths = range(party.num_paths(rank))
    return [
        Key(rank, index, path) for index in range(1 + party.num_lanes_at_start) for path in paths
    ]
