"""The control plane of this process: a service of the control thread (`loop.py`).

It holds the process's half of every coordinator: `Place` for each rank of each communicator here,
`ControlSockets` to the other processes. Ranks of one process talk to each other without sockets.
It lives from the first communicator that has peers to the last one.

    hold()                      bind, before the rendezvous: cards carry the contact
    plane.enrol(...)            after it: admit the members; hands out a `Coordination`
    coordination.attach(...)    once all connections stand: speak for a principal
"""

import contextlib
import logging
import math
import os
import socket
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from functools import partial

import zmq

from hccl_py.transport.network.interfaces import LocalAddress
from hccl_py.transport.network.listeners import bind_listener
from hccl_py.transport.process_lifecycle import Stage, register

from ..errors import BootstrapError
from .loop import ControlLoop
from .message import Contact, Entry, pack, unpack
from .place import Place
from .sockets import ControlSockets
from .strangers import THIS_MACHINE

logger = logging.getLogger("hccl_py.transport")

_MAX_LOGGED_COMPLAINTS = 16
_NUM_DESCRIPTORS = 48  # more than a plane and the first peers that it dials need


@dataclass(frozen=True)
class Roll:
    """The members of a communicator, as its control planes know them.

    Attributes:
        communicator_id: random, public.
        rank: this rank.
        contacts: of all ranks.
        near: for each rank, whether it runs on this machine.
    """

    communicator_id: bytes
    rank: int
    contacts: tuple[Contact, ...]
    near: tuple[bool, ...]


class ControlPlane:
    """The messages between ranks. `hold` and `release` look after the only one there is."""

    def __init__(self) -> None:
        """Start the control thread."""
        self.loop = ControlLoop()
        self.sockets = ControlSockets(self.loop.poller)
        self._lock = threading.Lock()
        self._bound: dict[str, tuple[socket.socket | None, int]] = {}
        # The thread's own.
        self._places: dict[tuple[bytes, int], Place] = {}
        self._rolls: dict[tuple[bytes, int], Roll] = {}
        self._num_rolls_of: Counter[bytes] = Counter()
        self._near: dict[bytes, bool] = {}
        self._here: deque[Entry] = deque()
        self._outgoing: dict[bytes, tuple[Contact, list[Entry]]] = {}
        self._touched: set[Place] = set()
        self._num_complaints = 0
        self.loop.add(self)
        self.loop.start(self._close)

    # Any thread.

    def contact(self, host: str, ports: range | None) -> Contact:
        """Return where this process is reached: on this machine, and at `host` from others.

        The port there is bound, but nobody listens before a member on another machine is known.
        """
        problem = ""
        with self._lock:
            if host and host not in self._bound:
                try:
                    bound = bind_listener(LocalAddress("", host), ports)
                    self._bound[host] = bound, bound.getsockname()[1]
                except (BootstrapError, OSError) as error:
                    problem = str(error)
            port = self._bound[host][1] if host in self._bound else 0
        host = host if port else ""
        return Contact(self.sockets.public_key, self.sockets.unix_name, host, port, problem)

    def enrol(self, roll: Roll) -> None:
        """Admit the members of a communicator; returns when they are."""
        self.loop.call(lambda: self._enrol(roll))

    def attach(self, place: Place) -> None:
        """Begin to speak for a rank of a communicator on the roll."""
        self.loop.call(lambda: self._attach(place))

    def leave(self, roll: Roll) -> None:
        """Speak for a rank no more, and forget its peers; nothing is touched after the return."""
        self.loop.call(lambda: self._leave(roll))

    def stop(self) -> None:
        """End the thread and close the sockets."""
        self.loop.stop()

    def close_in_child(self) -> None:
        """In a forked child, where the thread is not: close what would keep ports in use."""
        self.sockets.close_copies()
        for bound, _ in self._bound.values():
            if bound is not None:
                bound.close()
        self.loop.close_in_child()

    # The control thread.

    def _close(self) -> None:
        self.sockets.close()
        for bound, _ in self._bound.values():
            if bound is not None:
                bound.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return min((place.next_s() for place in self._places.values()), default=math.inf)

    def turn(self) -> None:
        """See `loop.Service`."""
        for key, message in self.sockets.receive():
            self._take(key, message)
        now_s = time.monotonic()
        for place in tuple(self._places.values()):
            if place.next_s() <= now_s:
                self.loop.guard(partial(place.tick, now_s))
        self._flush()

    def _news(self, place: Place) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(place.principal.news_fd())
        place.participant.news(time.monotonic())

    def _take(self, key: bytes, message: bytes) -> None:
        """Deliver the entries of an authenticated process, as far as they are its own ranks'."""
        try:
            entries = unpack(message)
        except ValueError as error:
            self._complain(f"a member's message was dropped: {error}")
            return
        for entry in entries:
            place = self._places.get((entry.communicator, entry.receiver))
            if place is None:
                continue  # not attached yet, or gone already
            if entry.sender >= len(place.contacts) or place.contacts[entry.sender].key != key:
                self._complain(f"a member claimed to be rank {entry.sender}, which it is not")
                continue
            self._deliver(place, entry)

    def _deliver(self, place: Place, entry: Entry) -> None:
        now_s = time.monotonic()
        self._touched.add(place)
        self.loop.guard(partial(place.hear, entry.sender, entry.kind, entry.body, now_s))

    def dispatch(self, place: Place, entry: Entry) -> None:
        """Take what a place has to say; it leaves at the end of the turn."""
        contact = place.contacts[entry.receiver]
        if contact.key == self.sockets.public_key:
            self._here.append(entry)
        else:
            self._outgoing.setdefault(contact.key, (contact, []))[1].append(entry)

    def _complain(self, what: str) -> None:
        self._num_complaints += 1
        if self._num_complaints <= _MAX_LOGGED_COMPLAINTS:
            logger.warning("%s", what)

    def _flush(self) -> None:
        """Deliver what ranks of this process have for each other, then send what is for others."""
        while self._here or self._touched:
            while self._here:
                entry = self._here.popleft()
                place = self._places.get((entry.communicator, entry.receiver))
                if place is not None:
                    self._deliver(place, entry)
            now_s = time.monotonic()
            while self._touched:  # perhaps the last word that was missing has come
                place = self._touched.pop()
                self.loop.guard(partial(place.settle, now_s))
        outgoing, self._outgoing = self._outgoing, {}
        for key, (contact, entries) in outgoing.items():
            if key in self._near:
                self._send(contact, entries)

    def _send(self, contact: Contact, entries: list[Entry]) -> None:
        """Send to one process; without a descriptor for it, all others shall hear all the same.

        Who waits for an answer asks again.
        """
        try:
            for message in pack(entries):
                self.sockets.send(contact, self._near[contact.key], message)
        except zmq.ZMQError as error:
            self._complain(f"the control plane could not reach a member: {error}")

    def _enrol(self, roll: Roll) -> None:
        self._rolls[roll.communicator_id, roll.rank] = roll
        for contact, near in zip(roll.contacts, roll.near, strict=True):
            self._num_rolls_of[contact.key] += 1
            self._near[contact.key] = near
        pairs = zip(roll.contacts, roll.near, strict=True)
        self.sockets.admit({one.key: THIS_MACHINE if near else one.host for one, near in pairs})
        if not all(roll.near):
            host = roll.contacts[roll.rank].host
            bound, port = self._bound[host]
            if bound is not None:
                self._bound[host] = None, port
                self.sockets.listen(bound)

    def _attach(self, place: Place) -> None:
        self._places[place.communicator_id, place.rank] = place
        self.loop.watch(place.principal.news_fd(), partial(self._news, place))

    def _leave(self, roll: Roll) -> None:
        if self._rolls.pop((roll.communicator_id, roll.rank), None) is None:
            return
        place = self._places.pop((roll.communicator_id, roll.rank), None)
        self._flush()
        if place is not None:
            self.loop.selector.unregister(place.principal.news_fd())
        self._num_rolls_of.subtract(contact.key for contact in roll.contacts)
        # Not at once: the garbage collector may have called this in the midst of a turn.
        self.loop.post(self._dismiss_gone)

    def _dismiss_gone(self) -> None:
        gone = [key for key, count in self._num_rolls_of.items() if count <= 0]
        self.sockets.dismiss(gone)
        for key in gone:
            del self._num_rolls_of[key]
            del self._near[key]


_plane: ControlPlane | None = None
_num_holders = 0
_lock = threading.RLock()  # the garbage collector may release inside hold()


def hold() -> ControlPlane:
    """Return the control plane of this process, started if need be; `release` it once.

    Raises:
        BootstrapError: if this process has too few descriptors left.
    """
    global _plane, _num_holders
    with _lock:
        if _plane is None:
            _require_descriptors()
            _plane = ControlPlane()
        _num_holders += 1
        return _plane


def _require_descriptors() -> None:
    """Look before ZeroMQ does, which ends the process where it gets none for its own threads."""
    taken: list[int] = []
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(taken) < _NUM_DESCRIPTORS:
            taken.append(os.dup(taken[0]))
    except OSError as error:
        raise BootstrapError(
            f"the control plane: expected {_NUM_DESCRIPTORS} free descriptors, got {len(taken)} "
            f"({error.strerror}); raise the limit (ulimit -n), or look for what is left open in "
            f"/proc/{os.getpid()}/fd"
        ) from error
    finally:
        for descriptor in taken:
            os.close(descriptor)


def release(plane: ControlPlane) -> None:
    """Let go of the control plane; the last one ends its thread."""
    global _plane, _num_holders
    with _lock:
        if plane is not _plane:
            return  # a forked child's copy of its parent's
        _num_holders -= 1
        if _num_holders > 0:
            return
        _plane = None
    plane.stop()


def _forget_after_fork() -> None:
    global _plane, _num_holders, _lock
    _lock = threading.RLock()
    if _plane is not None:
        _plane.close_in_child()
        _left_to_parent.append(_plane)
    _plane, _num_holders = None, 0


_left_to_parent: list[ControlPlane] = []
"""In a forked child: never destroyed, which might speak to the parent's peers."""

register(Stage.CONTROL_PLANE, in_forked_child=_forget_after_fork)
