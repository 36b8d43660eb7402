"""Makes the first connections of a rank, or fails with a message that says which is missing.

Of each pair the higher rank dials. Ranks of one node share one Unix connection; ranks of different
nodes share, over each path, a TCP control connection. Data lanes follow when they are first needed
(`reconnect.py`); only those of queue pairs are connected here.

Connecting fails early: when the kernel of a peer does not answer, or refuses although the peer
listens. All ranks then raise that failure (`shared_failure.py`). No rank continues before all ranks
have all connections (`join`).

The rank that dialled a connection redials it if it is lost after its handshake, and lost messages
are sent again. A peer that has joined accepts through its `Reconnector`. If the peer closed the
connection, both ranks dial: a refusal means that the peer has ended. Both ends of a queue pair
always dial, because they have no store to share a failure.

The control connections are a full mesh: they show within milliseconds that another rank ended, and
whether it said goodbye, even if the two ranks never exchange data.
"""

import contextlib
import math
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from selectors import DefaultSelector

from hccl_py.transport.bootstrap.connection import JOINED, NotNowError, PendingConnection
from hccl_py.transport.bootstrap.connector import Connector
from hccl_py.transport.bootstrap.sealed_store import POLL_PERIOD_S
from hccl_py.transport.bootstrap.shared_failure import SharedFailure
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.interfaces import describe_target
from hccl_py.transport.network.rejections import unauthenticated_limit
from hccl_py.transport.network.sockets import has_ended
from hccl_py.transport.network.system_calls import is_no_descriptor
from hccl_py.transport.wire.handshake import (
    CONNECTING,
    NotListeningError,
    RejectedError,
    ResetError,
    Steps,
)

_MAX_PEERS_IN_MESSAGE = 8
_KERNEL_ANSWERS_S = 12.0
"""Time limit for the kernel of a dialled host: the third repeated SYN leaves after 7 s."""
_LOST_S = 45.0
"""Time limit for a lost connection to return, the same as the engine's."""
_JOINED = b"J"
_LONGEST_TURN_S = 0.1
"""Interval at which `Deadline.hopeless` is called."""


class FullMesh(Connector):
    """Makes all connections of one rank."""

    FIRST_RETRY_S = 0.002
    LONGEST_RETRY_S = 0.1
    # Handshakes have no limit of their own: a rank may be slow, and the deadline covers all.
    ATTEMPT_S = math.inf

    def __init__(
        self,
        world: World,
        listeners: Sequence[socket.socket],
        deadline: Deadline,
        failure: SharedFailure | None = None,
    ) -> None:
        """Prepare; `run` does the work. The caller owns the listening sockets.

        `failure` is None where ranks share no failures.
        """
        # At most half of the time: the rank that dials knows the cause, and raises it before its
        # peers' deadlines.
        self.CONNECT_S = min(_KERNEL_ANSWERS_S, deadline.remaining_s / 2)
        self._failure = failure
        self._poll_s = time.monotonic() + POLL_PERIOD_S
        self._refusing: dict[Key, bool] = {}  # whether the peer is known to listen
        peers = (member.rank for member in world.members if member.rank != world.rank)
        self._awaited = {key for rank in peers for key in _keys(world, rank)}
        self._finished: dict[Key, PendingConnection] = {}
        self._lost: dict[Key, float] = {}  # broken ones: since when
        self._closed: set[Key] = set()  # closed by the peer
        self._sent: defaultdict[int, list[bytes]] = defaultdict(list)  # by rank
        self._received: defaultdict[int, list[bytes]] = defaultdict(list)
        self._open: dict[int, int] = {}  # by rank of an open exchange: bytes to receive
        self._deadline = deadline
        num_inbound = sum(key.rank > world.rank for key in self._awaited)
        max_unauthenticated = num_inbound + unauthenticated_limit()
        super().__init__(world, listeners, max_unauthenticated, DefaultSelector())

    def close(self) -> None:
        """Close all connections that were not detached. Idempotent."""
        for pending in tuple(self._unauthenticated):
            self._drop_unauthenticated(
                pending, "it had not proved itself when this rank had connected"
            )
        self._close_connections()
        self._selector.close()
        for pending in self._finished.values():
            pending.close()

    def run(self) -> dict[Key, PendingConnection]:
        """Connect to every peer; this object owns the connections until they are detached.

        BootstrapError: a peer rejected, failed or did not connect; `close` this object then.
        """
        self._listen()
        for key in sorted(self._awaited):
            if key.rank < self._world.rank:
                self._dial(key)
        while self._awaited:
            self._turn(self._timeout_message)
        return self._finished

    def serve(self) -> str:
        """Serve ranks that lost a connection while this rank waits for something else.

        Return "", so that it can be a `Deadline.hopeless`; BootstrapError: waiting is hopeless.
        """
        self._longest_turn_s()
        self._handle(0.0)
        return ""

    def join(self) -> None:
        """Wait until every rank has all its connections: each reports to rank 0, which answers all.

        BootstrapError: a rank could not connect, ended, or did not report in time.
        """
        others = range(1, len(self._world.members))
        if self._world.rank == 0:
            self.exchange({}, dict.fromkeys(others, len(_JOINED)))
            self.exchange(dict.fromkeys(others, _JOINED), {})
        else:
            self.exchange({0: _JOINED}, {0: len(_JOINED)})

    def exchange(self, messages: Mapping[int, bytes], sizes: Mapping[int, int]) -> dict[int, bytes]:
        """Send messages by rank, and return one of `sizes[rank]` bytes from each rank in `sizes`.

        BootstrapError: a rank ended, or its message did not arrive.
        """
        self._open = {**dict.fromkeys(messages, 0), **sizes}
        for rank, message in messages.items():
            self._sent[rank].append(message)
        for rank in tuple(self._open):
            self._start_exchange(rank, len(self._sent[rank]) - (rank in messages))
        while self._open:
            self._turn(lambda: self._join_message(sorted(self._open)))
        return {rank: self._received[rank][-1] for rank in sizes if self._received[rank]}

    def _start_exchange(self, rank: int, first: int) -> None:
        """Send a rank its messages from number `first` on, and receive one if one is expected."""
        key = Key(rank, CONTROL, 0)
        if key not in self._lost:  # else `_connected` does it
            self._finished[key].go_on_with(self._steps(rank, first))
            self._go_on(key)

    def _steps(self, rank: int, first: int) -> Steps:
        control = self._finished[Key(rank, CONTROL, 0)]
        for message in self._sent[rank][first:]:
            yield from control.send(message)
        if self._open.get(rank):
            self._received[rank].append((yield from control.receive(self._open[rank])))
        self._open.pop(rank, None)

    def _go_on(self, key: Key) -> None:
        control = self._finished[key]
        self._unwatch(control)
        try:
            event = control.advance()
        except RejectedError as error:
            self._lose(key, error)
        else:
            if event is not None:
                self._selector.register(control.socket, event, partial(self._go_on, key))

    def _lose(self, key: Key, cause: RejectedError) -> None:
        """Redial a finished connection; a refusal means that a peer that closed it has ended."""
        self._unwatch(self._finished[key])
        self._lost[key] = time.monotonic()
        if not isinstance(cause, ResetError):
            self._closed.add(key)
            if self._world.is_local(key.rank):  # no network in between
                raise self._ended(key) from cause
        if key in self._closed or key.rank < self._world.rank:
            self._dial(key)

    def _unwatch(self, finished: PendingConnection) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(finished.socket)

    def _ended(self, key: Key) -> BootstrapError:
        who = self._world.members[key.rank]
        return BootstrapError(f"{who} ended while ranks connected; look at its log")

    def _turn(self, timeout_message: Callable[[], str]) -> None:
        """Handle the next events; raise at the deadline, or if waiting is hopeless."""
        if self._deadline.expired:
            self._poll()
            raise BootstrapError(timeout_message())
        self._handle(self._longest_turn_s())

    def _handle(self, longest_s: float) -> None:
        until_s = min(time.monotonic() + longest_s, self.next_s())
        for ready, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
            ready.data()
        self.tick()

    def _longest_turn_s(self) -> float:
        if time.monotonic() >= self._poll_s:
            self._poll()
        remaining_s = min(self._deadline.remaining_s, max(0.0, self._poll_s - time.monotonic()))
        if self._deadline.hopeless is None:
            return remaining_s
        reason = self._deadline.hopeless()
        if reason:
            raise BootstrapError(f"rank {self._world.rank}: gave up connecting: {reason}")
        return min(_LONGEST_TURN_S, remaining_s)

    def _poll(self) -> None:
        """Check for lost connections and failed ranks, and which of the refusing ranks listen."""
        self._poll_s = time.monotonic() + POLL_PERIOD_S
        self._check_finished()
        if self._failure is None:
            return
        members = self._world.members
        here = members[self._world.rank].identity
        awaited = [members[rank] for rank in sorted({key.rank for key in self._awaited})]
        # Before `failure.poll`: a rank shares its failure before it closes its socket.
        ended = [one for one in awaited if has_ended(one.identity, one.unix_name, here)]
        self._failure.poll()
        if ended:
            raise self._ended(Key(ended[0].rank, CONTROL, 0))
        refusing = {key.rank for key, listens in self._refusing.items() if not listens}
        listening = {rank for rank in refusing if self._failure.listens(rank)}
        for key in self._refusing:
            self._refusing[key] |= key.rank in listening

    def _check_finished(self) -> None:
        for key, finished in self._finished.items():
            if key not in self._lost:
                try:
                    finished.check()
                except RejectedError as error:
                    self._lose(key, error)
        for key, since_s in self._lost.items():
            if time.monotonic() > since_s + _LOST_S:
                raise BootstrapError(
                    f"the connection with {self._world.members[key.rank]} was lost during "
                    f"start-up, and not back in {_LOST_S:g} s; look at its log and at the network"
                )

    def _refused(self, key: Key) -> None:
        """Retry while the peer may not listen yet; once it listens, a firewall refuses."""
        if key in self._closed or self._failure is None:  # the peer has listened
            raise self._ended(key)
        if not self._world.is_local(key.rank) and self._refusing.setdefault(key, False):
            what = f"{CONNECTING}: connection refused, although that rank listens"
            self._failed(key, what, NotListeningError())
        super()._refused(key)

    def _is_expected(self, key: Key) -> bool:
        if self._world.lanes_later and key.index != CONTROL:
            raise NotNowError("a lane of a rank that is connected to all others already")
        if key.rank < self._world.rank:
            raise NotNowError("this rank dials it itself")
        return key in self._awaited or key in self._finished

    def _progress(self, key: Key) -> int:
        return len(self._received[key.rank])

    def _connected(self, key: Key, pending: PendingConnection) -> None:
        """Take over a connection; it may replace one whose loss only the peer has noticed."""
        self._lost.pop(key, None)
        self._closed.discard(key)
        before = self._finished.get(key)
        if before is not None:
            if key.index != CONTROL and pending.progress == JOINED:
                pending.close()  # the peer has joined: both engines must replace the lane
                return
            self._unwatch(before)
            before.close()
        self._finished[key] = pending
        self._awaited.discard(key)
        if pending.progress == JOINED:
            self._open.pop(key.rank, None)
        elif (key.index, key.path) == (CONTROL, 0):
            self._start_exchange(key.rank, pending.progress)

    def _failed(self, key: Key, what: str, cause: Exception) -> None:
        """Raise, because every connection is required; retry one that was reset.

        A peer that has ended refuses the retry.
        """
        was_reset = isinstance(cause, ResetError)
        is_dialled = key in self._retry_s  # the end that accepts dials only after a loss
        if was_reset and self._failure is None and not is_dialled:
            self._dial(key)  # the other end may have finished and closed
            return
        if was_reset or key in self._finished or (is_dialled and key.rank > self._world.rank):
            self._retry_later(key)
            return
        me, peer = (self._world.members[rank] for rank in (self._world.rank, key.rank))
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
            f"{self._world.me} could not accept: {self._no_descriptor()}"
        ) from cause

    def _num_missing(self) -> int:
        later = self._world.num_lanes - self._world.num_lanes_at_start
        return len(self._awaited) + later * sum(map(self._world.num_paths, self._world.remote))

    def _where(self, key: Key) -> str:
        target = describe_target(self._target(key))
        if self._world.is_local(key.rank):
            return target
        interface = self._world.route(key.rank, key.path)[0].interface
        return f"{target} through {interface}" if interface else target

    def _timeout_message(self) -> str:
        steps = {pending.key: f"waits at {pending.step}" for pending in self._pending}
        groups = groupby(sorted(self._awaited), lambda key: key.rank)
        missing = {rank: tuple(keys) for rank, keys in groups}
        shown = []
        for rank, keys in islice(missing.items(), _MAX_PEERS_IN_MESSAGE):
            absent = "never connected" if rank > self._world.rank else "did not answer"
            states = ", ".join(f"{key} {steps.get(key, absent)}" for key in keys)
            where = ", ".join(dict.fromkeys(map(self._where, keys)))
            shown.append(f"{self._world.members[rank]} at {where}: {states}")
        if len(missing) > len(shown):
            shown.append(f"and {len(missing) - len(shown)} more ranks")
        return (
            f"{self._world.me} has no connection {self._deadline} with "
            f"{'; '.join(shown)}; look at the logs of those ranks, and whether a firewall or the "
            "wrong interface (HCCL_SOCKET_IFNAME) is in the way; see hccl-launch --check"
            f"{self._rejections.summary()}"
        )

    def _join_message(self, waiting: Sequence[int]) -> str:
        missing = ", ".join(
            str(self._world.members[rank]) for rank in waiting[:_MAX_PEERS_IN_MESSAGE]
        )
        return (
            f"{self._world.me} is connected with all ranks, but "
            f"{self._deadline} these have not reported the same: {missing}; look at their logs"
        )


def _keys(world: World, rank: int) -> list[Key]:
    if world.is_local(rank):
        return [Key(rank, CONTROL, 0)]
    paths = range(world.num_paths(rank))
    return [
        Key(rank, index, path) for index in range(1 + world.num_lanes_at_start) for path in paths
    ]
