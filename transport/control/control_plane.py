"""The control plane of this process: messages between ranks, a service of the control thread.

`acquire` starts it before the rendezvous, because peer infos carry its address. It exists from
the first communicator with peers until the last is closed. Ranks of one process need no sockets.
"""

import contextlib
import math
import os
import socket
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial

from hccl_py.transport.control.loop import ControlLoop
from hccl_py.transport.control.message import ControlAddress, ControlMembers, Entry, pack, unpack
from hccl_py.transport.control.participant import Participant
from hccl_py.transport.control.sockets import ControlSockets
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Endpoint
from hccl_py.transport.network.sockets import bind_listener
from hccl_py.transport.process_lifecycle import LifecycleStage, register
from hccl_py.transport.threads import is_of_signal_handler


class ControlPlane:
    """The messages between ranks. `acquire` and `release` own this process's only instance."""

    def __init__(self) -> None:
        self.loop = ControlLoop(self._close)
        self.sockets = ControlSockets(self.loop.selector, self._take)
        self._lock = threading.Lock()
        self._bound: dict[str, tuple[socket.socket | None, int]] = {}
        # Used by the control thread only.
        self._participants: dict[tuple[bytes, int], Participant] = {}
        self._here: deque[Entry] = deque()
        self._outgoing: dict[bytes, list[Entry]] = {}  # by process key
        self.loop.add(self)
        self.loop.start()

    # Called by any thread.

    def control_address(self, host: str, ports: range | None) -> ControlAddress:
        """Return the address of this process: on this machine, and at `host` from others.

        The port is bound, but listens only once a member on another machine is known.
        """
        found = ControlAddress(self.sockets.key, self.sockets.unix_name)
        if not host:
            return found
        with self._lock:
            if host not in self._bound:
                try:
                    bound = bind_listener(Endpoint("", host), ports)
                except (BootstrapError, OSError) as error:
                    if is_of_signal_handler(error):
                        raise
                    return replace(found, problem=str(error))
                self._bound[host] = bound, bound.getsockname()[1]
            return replace(found, host=host, port=self._bound[host][1])

    def close_in_child(self) -> None:
        """In a forked child, which lacks the thread: close descriptors that keep ports in use."""
        self.sockets.close_copies()
        self._close_bound()
        self.loop.close_in_child()

    def _close_bound(self) -> None:
        for bound, _ in self._bound.values():
            if bound is not None:
                bound.close()

    # Called by the control thread.

    def admit(self, members: ControlMembers) -> None:
        """Admit the members of a communicator."""
        self.sockets.admit(members)
        if not all(address.unix_name for address in members.addresses):
            host = members.addresses[members.rank].host
            bound, port = self._bound[host]
            if bound is not None:
                self._bound[host] = None, port
                self.sockets.listen(bound)

    def attach(self, participant: Participant) -> None:
        """Start a rank's participant; its communicator's members are admitted."""
        members = participant.members
        self._participants[members.communicator_id, members.rank] = participant
        self.loop.watch(participant.reporter.news_fd(), partial(self._on_news, participant))

    def leave(self, members: ControlMembers) -> None:
        """Stop a rank's participant, and dismiss its peers."""
        participant = self._participants.pop((members.communicator_id, members.rank), None)
        self._flush()
        if participant is not None:
            self.loop.selector.unregister(participant.reporter.news_fd())
        # Deferred: the garbage collector may have called this within a turn.
        self.loop.post(lambda: self.sockets.dismiss(members))

    def _close(self) -> None:
        self.sockets.close()
        self._close_bound()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return min(
            self.sockets.next_s(),
            min((one.next_s() for one in self._participants.values()), default=math.inf),
        )

    def turn(self) -> None:
        """See `loop.Service`."""
        self.sockets.tick()
        self._flush()  # before ticks: an answer that was received is not late
        now_s = time.monotonic()
        for participant in tuple(self._participants.values()):
            if participant.next_s() <= now_s:
                self.loop.guard(partial(participant.tick, now_s))
        self._flush()

    def send(self, participant: Participant, entry: Entry) -> None:
        """Queue a participant's message; it is sent at the end of the turn."""
        key = participant.members.addresses[entry.receiver].key
        if key == self.sockets.key:
            self._here.append(entry)
        else:
            self._outgoing.setdefault(key, []).append(entry)

    def _on_news(self, participant: Participant) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(participant.reporter.news_fd())
        participant.on_news(time.monotonic())

    def _take(self, key: bytes, message: bytes) -> None:
        """Deliver the entries of an authenticated process, but only those of its own ranks."""
        try:
            entries = unpack(message)
        except ValueError as error:
            self.loop.log(f"a member's message was dropped: {error}")
            return
        for entry in entries:
            participant = self._participants.get((entry.communicator, entry.receiver))
            if participant is None:
                continue  # not attached yet, or no longer
            addresses = participant.members.addresses
            if entry.sender >= len(addresses) or addresses[entry.sender].key != key:
                self.loop.log(f"a member claimed to be rank {entry.sender}, which it is not")
                continue
            self._here.append(entry)

    def _flush(self) -> None:
        while self._here:
            now_s = time.monotonic()
            while self._here:
                entry = self._here.popleft()
                receiver = self._participants.get((entry.communicator, entry.receiver))
                if receiver is not None:
                    taken = entry.sender, entry.kind, entry.body, now_s
                    self.loop.guard(partial(receiver.receive, *taken))
            for participant in tuple(self._participants.values()):
                # The last missing report may have arrived.
                self.loop.guard(partial(participant.decide, now_s))
        outgoing, self._outgoing = self._outgoing, {}
        for key, entries in outgoing.items():
            for message in pack(entries):
                self.sockets.send(key, message)


_plane: ControlPlane | None = None
_released: ControlPlane | None = None  # the last instance, whose thread may be ending
_num_holders = 0
_lock = threading.RLock()  # the garbage collector may release inside acquire()


def acquire() -> ControlPlane:
    """Return the control plane of this process, started if necessary; `release` it once.

    Raises:
        BootstrapError: this process has too few descriptors left, or may have no thread.
    """
    global _plane, _num_holders
    with _lock:
        if _plane is None:
            try:
                _plane = ControlPlane()
            except OSError as error:
                if is_of_signal_handler(error):
                    raise
                raise BootstrapError(
                    f"the control plane: {error.strerror}; raise the limit (ulimit -n), or see "
                    f"what is left open in /proc/{os.getpid()}/fd"
                ) from error
        _num_holders += 1
        return _plane


def release(plane: ControlPlane) -> None:
    """Release the control plane; the last release ends its thread."""
    global _plane, _released, _num_holders
    with _lock:
        if plane is not _plane:
            return  # a forked child's copy of its parent's
        _num_holders -= 1
        if _num_holders > 0:
            return
        _plane, _released = None, plane
    plane.loop.stop()


def _join_released() -> None:
    """Join a control thread that released its own control plane and could not join itself."""
    if _released is not None:
        _released.loop.stop()


def _forget_after_fork() -> None:
    global _plane, _released, _num_holders, _lock
    _lock = threading.RLock()
    if _plane is not None:
        _plane.close_in_child()
    _plane, _released, _num_holders = None, None, 0


register(LifecycleStage.CONTROL_PLANE, at_exit=_join_released, in_forked_child=_forget_after_fork)
