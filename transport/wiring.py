"""One loop that dials, listens and authenticates until every connection of a rank stands.

Of each pair the higher rank dials. Ranks of one node share one Unix connection; ranks of different
nodes share a TCP control connection and one TCP connection per lane. A single thread serves all
sockets, so a silent or hostile client blocks nobody and Ctrl-C works at once.
"""

import errno
import heapq
import logging
import os
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from .deadline import Deadline
from .errors import BootstrapError
from .handshake import CONTROL, Handshake, Party, RefusedError
from .identity import Member
from .line import Line, Target, describe_client, describe_target, start_connecting

logger = logging.getLogger("hccl_py.transport")

STRANGER_TIMEOUT_S = 10.0
"""How long an accepted connection may take to prove that it knows the secret."""

_MAX_STRANGERS_BEYOND_EXPECTED = 64
_MAX_LOGGED_STRANGERS = 16
_MAX_PEERS_IN_MESSAGE = 8
_FIRST_RETRY_S = 0.002
_LONGEST_RETRY_S = 0.1

Key = tuple[int, int]
"""A connection: rank of the peer and index (`CONTROL` or 1 + lane)."""


class Wiring:
    """Makes all connections of one rank. A context manager: closes what was not handed out."""

    def __init__(
        self, party: Party, num_lanes: int, listeners: Sequence[socket.socket], deadline: Deadline
    ) -> None:
        """Prepare; `run` does the work.

        Args:
            party: this rank and its peers.
            num_lanes: TCP data connections per peer of another node.
            listeners: listening, non-blocking sockets; stay with the caller.
            deadline: for everything.
        """
        self._party = party
        self._deadline = deadline
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._awaited: set[Key] = {
            (member.rank, index)
            for member in party.members
            if member.rank != party.rank
            for index in range(1 if party.is_local(member.rank) else 1 + num_lanes)
        }
        self._finished: dict[Key, Line] = {}
        # Everything below is in progress. Strangers are in order of arrival, hence of deadline.
        self._lines: set[Line] = set()
        self._strangers: dict[Line, float] = {}
        self._dialling: dict[Key, socket.socket] = {}
        self._retries: list[tuple[float, Key, float]] = []
        self._refusals: Counter[str] = Counter()
        num_inbound = sum(rank > party.rank for rank, _ in self._awaited)
        self._max_strangers = num_inbound + _MAX_STRANGERS_BEYOND_EXPECTED

    def __enter__(self) -> "Wiring":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all connections that are still this object's."""
        for line in (*self._lines, *self._finished.values()):
            line.close()
        for dialling in self._dialling.values():
            dialling.close()
        self._selector.close()

    def run(self) -> dict[Key, Line]:
        """Connect to every peer.

        Returns:
            One finished line per connection. They stay owned by this object until detached.

        Raises:
            BootstrapError: a peer refused, failed or did not come; everything is to be closed.
        """
        for listener in self._listeners:
            self._watch(listener, selectors.EVENT_READ, partial(self._accept, listener))
        for key in sorted(self._awaited):
            if key[0] < self._party.rank:
                self._dial(key, _FIRST_RETRY_S)
        while self._awaited:
            if self._deadline.expired:
                raise BootstrapError(self._timeout_message())
            for ready, _ in self._selector.select(self._pause_s()):
                ready.data()
            self._redial()
            self._drop_slow_strangers()
        for line in tuple(self._strangers):
            self._drop_stranger(line, "it had not proved itself when all ranks were connected")
        return self._finished

    # Dialling.

    def _dial(self, key: Key, retry_s: float) -> None:
        peer = self._party.members[key[0]]
        try:
            dialled = start_connecting(self._target(peer))
        except OSError as error:
            raise self._failure(peer, key[1], f"connecting: {error}") from error
        if dialled is None:
            self._retry_later(key, retry_s)
            return
        self._dialling[key] = dialled
        self._watch(dialled, selectors.EVENT_WRITE, partial(self._dialled, key, retry_s))

    def _dialled(self, key: Key, retry_s: float) -> None:
        """Go on with a connection that was made, or not."""
        dialled = self._dialling.pop(key)
        self._selector.unregister(dialled)
        code = dialled.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        peer = self._party.members[key[0]]
        if code:
            dialled.close()
            if code != errno.ECONNREFUSED:
                raise self._failure(peer, key[1], f"connecting: {os.strerror(code)}")
            self._retry_later(key, retry_s)
            return
        handshake = Handshake(self._party)
        address = describe_target(self._target(peer))
        line = Line(dialled, handshake, handshake.connect(peer, key[1]), address)
        self._lines.add(line)
        self._begin(line)

    def _retry_later(self, key: Key, retry_s: float) -> None:
        longer_s = min(2 * retry_s, _LONGEST_RETRY_S)
        heapq.heappush(self._retries, (time.monotonic() + retry_s, key, longer_s))

    def _redial(self) -> None:
        while self._retries and self._retries[0][0] <= time.monotonic():
            _, key, retry_s = heapq.heappop(self._retries)
            self._dial(key, retry_s)

    # Listening.

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, address = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                return  # an error of that connection, says accept(2)
            raise BootstrapError(
                f"rank {self._party.rank}: no descriptor left for a connection; see ulimit -n"
            ) from error
        accepted.setblocking(False)
        is_local = listener.family == socket.AF_UNIX
        handshake = Handshake(self._party)
        steps = handshake.accept(partial(self._is_expected, is_local))
        line = Line(accepted, handshake, steps, describe_client(accepted, address))
        self._lines.add(line)
        self._strangers[line] = time.monotonic() + STRANGER_TIMEOUT_S
        if len(self._strangers) > self._max_strangers:
            self._drop_stranger(next(iter(self._strangers)), "too many others are waiting")
        self._begin(line)

    def _is_expected(self, is_local: bool, rank: int, index: int) -> bool:
        return (
            rank > self._party.rank
            and (rank, index) in self._awaited
            and self._party.is_local(rank) == is_local
        )

    def _drop_slow_strangers(self) -> None:
        now_s = time.monotonic()
        for line, limit_s in tuple(self._strangers.items()):
            if limit_s > now_s:
                break
            self._drop_stranger(line, f"it did not prove itself in {STRANGER_TIMEOUT_S:g} s")

    def _drop_stranger(self, line: Line, reason: str) -> None:
        del self._strangers[line]
        self._forget(line)
        line.close()
        self._refusals[reason] += 1
        if self._refusals.total() <= _MAX_LOGGED_STRANGERS:
            logger.warning(
                "rank %d refused a connection from %s: %s", self._party.rank, line.address, reason
            )

    # Handshakes.

    def _begin(self, line: Line) -> None:
        self._watch(line.socket, selectors.EVENT_READ, partial(self._advance, line))
        try:
            line.begin()
        except RefusedError as refusal:
            self._refuse(line, refusal)
            return
        self._advance(line)

    def _advance(self, line: Line) -> None:
        if line.closed:  # by an earlier event of the same turn
            return
        try:
            event = line.advance()
            if event is None:
                self._finish(line)
        except RefusedError as refusal:
            self._refuse(line, refusal)
            return
        if line.handshake.authenticated:
            self._strangers.pop(line, None)
        if event is not None:
            self._selector.modify(line.socket, event, partial(self._advance, line))

    def _refuse(self, line: Line, refusal: RefusedError) -> None:
        if line in self._strangers and not line.handshake.authenticated:
            self._drop_stranger(line, str(refusal))
            return
        peer = line.handshake.peer
        assert peer is not None
        what = f"{line.handshake.step}: {refusal}"
        if line.handshake.step == "proof":  # an acceptor drops strangers without a word
            what += " (is HCCL_SECRET the same on both?)"
        raise self._failure(peer, line.handshake.index, what) from refusal

    def _finish(self, line: Line) -> None:
        peer, index = line.handshake.peer, line.handshake.index
        assert peer is not None
        if (peer.rank, index) not in self._awaited:
            raise self._failure(peer, index, "it connected twice")
        if index == CONTROL:
            line.watch_peer()
        self._forget(line)
        self._finished[peer.rank, index] = line
        self._awaited.remove((peer.rank, index))

    def _forget(self, line: Line) -> None:
        self._lines.discard(line)
        self._selector.unregister(line.socket)

    # The loop.

    def _watch(self, watched: socket.socket, event: int, action: Callable[[], None]) -> None:
        self._selector.register(watched, event, action)

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        pauses_s = [self._deadline.remaining_s]
        if self._retries:
            pauses_s.append(self._retries[0][0] - now_s)
        if self._strangers:
            pauses_s.append(next(iter(self._strangers.values())) - now_s)
        return max(0.0, min(pauses_s))

    def _target(self, peer: Member) -> Target:
        if self._party.is_local(peer.rank):
            return "\0" + peer.unix_name
        assert peer.tcp_address is not None  # the rendezvous made sure
        return peer.tcp_address

    # Errors.

    def _failure(self, peer: Member, index: int, what: str) -> BootstrapError:
        return BootstrapError(
            f"rank {self._party.rank}: no connection with {peer} at "
            f"{describe_target(self._target(peer))}: {_name_of(index)}: {what}; look at the log of "
            f"rank {peer.rank} first{self._hint()}"
        )

    def _timeout_message(self) -> str:
        steps = {
            (line.handshake.peer.rank, line.handshake.index): f"waits at {line.handshake.step}"
            for line in self._lines
            if line.handshake.peer is not None
        }
        by_peer: dict[int, list[str]] = {}
        for rank, index in sorted(self._awaited):
            absent = "never connected" if rank > self._party.rank else "did not answer"
            state = f"{_name_of(index)} {steps.get((rank, index), absent)}"
            by_peer.setdefault(rank, []).append(state)
        shown = []
        for rank in list(by_peer)[:_MAX_PEERS_IN_MESSAGE]:
            peer = self._party.members[rank]
            where = describe_target(self._target(peer))
            shown.append(f"{peer} at {where}: {', '.join(by_peer[rank])}")
        if len(by_peer) > len(shown):
            shown.append(f"and {len(by_peer) - len(shown)} more ranks")
        return (
            f"rank {self._party.rank}: connections are missing {self._deadline}: "
            f"{'; '.join(shown)}; look at the logs of those ranks, and whether a firewall or the "
            f"wrong interface (HCCL_SOCKET_IFNAME) is in the way{self._hint()}"
        )

    def _hint(self) -> str:
        if not self._refusals:
            return ""
        reasons = [f"{count} ({reason})" for reason, count in self._refusals.most_common(4)]
        return f"; connections refused meanwhile: {', '.join(reasons)}"


def _name_of(index: int) -> str:
    return "control" if index == CONTROL else f"lane {index - 1}"
