"""Makes the first connections of a rank, or fails with a message that says which is missing.

Of each pair the higher rank dials. Ranks of one node share one Unix connection; ranks of different
nodes share, over each path, a TCP control connection. Data lanes follow when they are first needed
(`reconnect.py`); only those of queue pairs are connected here.

A connection fails as soon as it can be known: the kernel of the peer does not answer, or refuses
although the peer listens. All ranks hear that (`shared_failure.py`), and no rank goes on before all
have all their connections (`join`).

The control connections are a full mesh: a rank notices by them within milliseconds that another one
ended, and whether it said goodbye, even if the two never exchange data.
"""

import contextlib
import math
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from selectors import DefaultSelector
from typing import Any

from hccl_py.transport.bootstrap.connection import (
    CONNECTING,
    NotListeningError,
    NotNowError,
    PendingConnection,
    RejectedError,
    ResetError,
)
from hccl_py.transport.bootstrap.connector import Connector
from hccl_py.transport.bootstrap.party import CONTROL, Key, Party
from hccl_py.transport.bootstrap.sealed_store import LOOK_PERIOD_S
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import stranger_limit
from hccl_py.transport.network.sockets import has_ended
from hccl_py.transport.network.system_calls import is_no_descriptor
from hccl_py.transport.threads import is_of_signal_handler

_MAX_PEERS_IN_MESSAGE = 8
_KERNEL_ANSWERS_S = 12.0
"""How long a dialled host may be silent: the third packet of a lost connect goes out after 7 s."""
_JOINED = b"J"
_LONGEST_TURN_S = 0.1
"""How often a deadline that can be hopeless is asked."""


class FullMesh(Connector):
    """Makes all connections of one rank."""

    FIRST_RETRY_S = 0.002
    LONGEST_RETRY_S = 0.1
    # No limit to a handshake: a rank may be slow, and there is a deadline for it all.
    ATTEMPT_S = math.inf

    def __init__(
        self,
        party: Party,
        listeners: Sequence[socket.socket],
        deadline: Deadline,
        failure: SharedFailure | None = None,
    ) -> None:
        """Prepare; `run` does the work. The listening sockets stay the caller's.

        `failure` is what all ranks know; None where they share nothing.
        """
        # Half of the time at most, so that the rank that dials names the cause before its peers,
        # which know less, come to their deadlines.
        self.CONNECT_S = min(_KERNEL_ANSWERS_S, deadline.remaining_s / 2)
        self._failure = failure
        self._look_s = time.monotonic() + LOOK_PERIOD_S
        self._refusing: dict[Key, bool] = {}  # whether the peer is known to listen
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
            self._turn(self._timeout_message)
        for pending in tuple(self._strangers):
            reason = "it had not proved itself when all ranks were connected"
            self._drop_stranger(pending, reason)
        return self._finished

    def join(self) -> None:
        """Wait until every rank has all its connections: each tells rank 0, which tells all.

        BootstrapError: a rank could not connect, ended, or did not come so far.
        """
        controls = {
            key.rank: pending
            for key, pending in self._finished.items()
            if (key.index, key.path) == (CONTROL, 0)
        }
        if self._party.rank == 0:
            self._exchange({rank: one.receive(1) for rank, one in controls.items()})
            self._exchange({rank: one.send(_JOINED) for rank, one in controls.items()})
        else:
            self._exchange({0: controls[0].send(_JOINED)})
            self._exchange({0: controls[0].receive(1)})

    def exchange(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send each of these ranks a message and return theirs; all have the same, small size.

        BootstrapError: a rank ended, or its message did not come.
        """
        received: dict[int, bytes] = {}

        def both(rank: int, message: bytes) -> Generator[int, None, Any]:
            control = self._finished[Key(rank, CONTROL, 0)]
            yield from control.send(message)
            received[rank] = yield from control.receive(len(message))

        self._exchange({rank: both(rank, message) for rank, message in messages.items()})
        return received

    def _exchange(self, steps: dict[int, Generator[int, None, Any]]) -> None:
        """Run the steps of some ranks' control connections side by side."""
        waiting = dict(steps)

        def advance(rank: int) -> None:
            connection = self._finished[Key(rank, CONTROL, 0)].socket
            try:
                event = next(steps[rank], None)
            except (RejectedError, OSError) as error:
                if is_of_signal_handler(error):
                    raise
                how = "was reset" if isinstance(error, ResetError | ConnectionError) else "ended"
                raise BootstrapError(
                    f"the connection with {self._party.members[rank]} {how} while others "
                    "connected; look at its log, and for a reset at the network"
                ) from error
            if event is None:
                del waiting[rank]
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            if event is not None:
                self._selector.register(connection, event, partial(advance, rank))

        for rank in steps:
            advance(rank)
        while waiting:
            self._turn(lambda: self._join_message(tuple(waiting)))

    def _turn(self, timeout_message: Callable[[], str]) -> None:
        """Handle what happens in the next moment; raise at the deadline, or if it is hopeless."""
        if self._deadline.expired:
            self._look()
            raise BootstrapError(timeout_message())
        until_s = min(time.monotonic() + self._longest_turn_s(), self.next_s())
        for ready, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
            ready.data()
        self.tick()

    def _longest_turn_s(self) -> float:
        if time.monotonic() >= self._look_s:
            self._look()
        remaining_s = min(self._deadline.remaining_s, max(0.0, self._look_s - time.monotonic()))
        if self._deadline.hopeless is None:
            return remaining_s
        reason = self._deadline.hopeless()
        if reason:
            raise BootstrapError(f"rank {self._party.rank}: gave up to connect: {reason}")
        return min(_LONGEST_TURN_S, remaining_s)

    def _look(self) -> None:
        """See whether another rank failed, and whether those that refuse are to listen."""
        if self._failure is None:
            self._look_s = math.inf
            return
        self._look_s = time.monotonic() + LOOK_PERIOD_S
        members = self._party.members
        here = members[self._party.rank].identity
        awaited = [members[rank] for rank in sorted({key.rank for key in self._awaited})]
        # A rank closes its socket after it shared its failure, or when nobody awaits it any more.
        ended = [one for one in awaited if has_ended(one.identity, one.unix_name, here)]
        self._failure.look()
        if ended:
            raise BootstrapError(f"{ended[0]} ended while ranks connected; look at its log")
        refusing = {key.rank for key, listens in self._refusing.items() if not listens}
        listening = {rank for rank in refusing if self._failure.listens(rank)}
        for key in self._refusing:
            self._refusing[key] |= key.rank in listening

    def _refused(self, key: Key) -> None:
        """Retry while the peer may be slow; what it refuses once it listens, a firewall does."""
        if not self._party.is_local(key.rank) and self._refusing.setdefault(key, False):
            what = f"{CONNECTING}: connection refused, although that rank listens"
            self._failed(key, what, NotListeningError())
        super()._refused(key)

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
        """Give up: at the start every connection has to come about. One that was reset comes again.

        A peer that has ended refuses it then.
        """
        if isinstance(cause, ResetError):
            self._retry_later(key)
            return
        me, peer = (self._party.members[rank] for rank in (self._party.rank, key.rank))
        hint = f"look at the log of rank {peer.rank} first"
        if is_no_descriptor(cause):
            hint = "raise it there"
        elif what.startswith(CONNECTING):
            hint = "is a firewall or the wrong interface in the way? see hccl-launch --check"
        raise BootstrapError(
            f'{me} could not reach {peer} at {self._where(key)} in step "{key}": {what}; {hint}'
            f"{self._rejections.summary()}"
        ) from cause

    def _out_of_descriptors(self, cause: OSError) -> None:
        raise BootstrapError(
            f"{self._party.members[self._party.rank]} could not accept: {self._no_descriptor()}"
        ) from cause

    def _num_missing(self) -> int:
        later = self._party.num_lanes - self._party.num_lanes_at_start
        remote = (one.rank for one in self._party.members if not self._party.is_local(one.rank))
        return len(self._awaited) + later * sum(map(self._party.num_paths, remote))

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
            f"{self._party.members[self._party.rank]} has no connection {self._deadline} with "
            f"{'; '.join(shown)}; look at the logs of those ranks, and whether a firewall or the "
            "wrong interface (HCCL_SOCKET_IFNAME) is in the way; see hccl-launch --check"
            f"{self._rejections.summary()}"
        )

    def _join_message(self, waiting: Sequence[int]) -> str:
        missing = ", ".join(
            str(self._party.members[rank]) for rank in waiting[:_MAX_PEERS_IN_MESSAGE]
        )
        return (
            f"{self._party.members[self._party.rank]} is connected with all ranks, but "
            f"{self._deadline} has not heard that of {missing}; look at the log there"
        )


def _keys(party: Party, rank: int) -> list[Key]:
    if party.is_local(rank):
        return [Key(rank, CONTROL, 0)]
    paths = range(party.num_paths(rank))
    return [
        Key(rank, index, path) for index in range(1 + party.num_lanes_at_start) for path in paths
    ]
