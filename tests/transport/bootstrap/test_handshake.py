"""The handshake byte by byte, without sockets."""

import socket
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE

import pytest

from hccl_py.transport.bootstrap.connection import PendingConnection
from hccl_py.transport.bootstrap.world import CONTROL, Key, World
from hccl_py.transport.network.identity import Identity, Member
from hccl_py.transport.wire.handshake import RejectedError, Steps

MEMBERS = tuple(Member(i, Identity(f"host{i}", 100 + i, "", i // 2, "")) for i in range(4))
COMMUNICATOR_ID = b"c" * 16
SECRET = b"s" * 32


def world(rank: int) -> World:
    return World(rank, MEMBERS, COMMUNICATOR_ID, SECRET, (10 * rank, 10 * rank + 1, 10 * rank + 2))


Tamper = Callable[[int, bytes], bytes]


def no_tampering(position: int, data: bytes) -> bytes:
    return data


def flip_byte(target: int, position: int, data: bytes) -> bytes:
    if not position <= target < position + len(data):
        return data
    changed = bytearray(data)
    changed[target - position] ^= 0x40
    return bytes(changed)


class Side(PendingConnection):
    """One side without a socket: `tamper(position, data)` is the wire to the other one."""

    def __init__(self, world: World) -> None:
        super().__init__(world, None, "", lambda key: True)  # type: ignore[arg-type]
        self.other = self
        self.inbox = b""
        self.sent: list[bytes] = []
        self.outcome: str | None = None
        self.tamper: Tamper = no_tampering

    def send(self, data: bytes, descriptors: tuple[int, ...] = ()) -> Steps:
        self.other.inbox += self.tamper(sum(map(len, self.sent)), data)
        self.other.descriptors += descriptors
        self.sent.append(data)
        yield EVENT_WRITE

    def receive(self, num_bytes: int, num_descriptors: int = 0) -> Generator[int, None, bytes]:
        while len(self.inbox) < num_bytes:
            yield EVENT_READ
        data, self.inbox = self.inbox[:num_bytes], self.inbox[num_bytes:]
        return data

    def go_on(self, steps: Steps) -> bool:
        """Go on to the next step; False if that waits for the other side."""
        if self.outcome is not None:
            return False
        try:
            return next(steps) == EVENT_WRITE
        except StopIteration:
            self.outcome = "done"
        except RejectedError as rejection:
            self.outcome = str(rejection)
        return True


def converse(
    connector: Side,
    acceptor: Side,
    index: int = CONTROL,
    path: int = 0,
    is_expected: Callable[[Key], bool] = lambda key: True,
) -> list[Side]:
    """Run both sides until neither can go on."""
    connector.other, acceptor.other = acceptor, connector
    target = Key(acceptor.world.rank, index, path)
    sides = {connector: connector.connect(target), acceptor: acceptor.accept(is_expected)}
    while any([side.go_on(steps) for side, steps in sides.items()]):
        continue
    return list(sides)


def pair(tampering: int = 0, tamper: Tamper = no_tampering) -> list[Side]:
    """Let rank 1 dial rank 0, over a wire on which one side's bytes are changed."""
    sides = Side(world(1)), Side(world(0))
    sides[tampering].tamper = tamper
    return converse(*sides)


@pytest.mark.parametrize("connector, index, descriptors", [(1, CONTROL, (0, 1, 2)), (3, 2, ())])
def test_handshake_between_members_succeeds_on_both_sides(
    connector: int, index: int, descriptors: tuple[int, ...]
) -> None:
    a, b = converse(Side(world(connector)), Side(world(0)), index)
    assert (a.outcome, b.outcome) == ("done", "done")
    assert (a.inbox, b.inbox) == (b"", b"")
    assert a.descriptors == descriptors
    assert b.key == Key(connector, index, 0)
    assert a.authenticated and b.authenticated


def test_handshake_every_changed_byte_is_rejected() -> None:
    lengths = [sum(map(len, side.sent)) for side in pair()]
    assert lengths == [76 + 32 + 1] * 2
    for sender, length in enumerate(lengths):
        for target in range(length):
            receiver = pair(sender, partial(flip_byte, target))[1 - sender]
            # A changed length may leave the receiver waiting for bytes that never come.
            assert receiver.outcome != "done", f"byte {target} of side {sender} was not protected"


def alone_with(side: Side, steps: Steps) -> str:
    """Run one side on what is in its inbox; return why it ended."""
    while side.go_on(steps):
        continue
    return side.outcome or "waits"


def test_handshake_that_is_replayed_or_reflected_is_rejected() -> None:
    acceptor, connector = Side(world(0)), Side(world(1))
    acceptor.inbox = b"".join(pair()[0].sent)  # every byte of a handshake that was good
    acceptor.other = Side(world(1))
    assert "secret" in alone_with(acceptor, acceptor.accept(lambda key: True))
    # The connector is its own peer: what it sends comes back.
    told = alone_with(connector, connector.connect(Key(0, CONTROL, 0)))
    assert told == "it is on the wrong side of the connection"
    assert not (acceptor.authenticated or connector.authenticated)


def test_handshake_stranger_gets_nothing_but_a_hello() -> None:
    def guess_proof(position: int, data: bytes) -> bytes:
        return bytes(32) if position == 76 else data

    _, acceptor = pair(0, guess_proof)
    assert "secret" in (acceptor.outcome or "")
    assert list(map(len, acceptor.sent)) == [76]
    assert not acceptor.authenticated


@pytest.mark.parametrize(
    "change",
    [{"secret": b"t" * 32}, {"communicator_id": b"d" * 16}],
    ids=["secret", "communicator"],
)
@pytest.mark.parametrize("outsider", [0, 1])
def test_handshake_outsider_is_rejected(change: dict[str, bytes], outsider: int) -> None:
    parties = [world(1), world(0)]
    parties[outsider] = replace(parties[outsider], **change)
    sides = converse(*map(Side, parties))
    assert "done" not in [side.outcome for side in sides]
    assert not any(side.authenticated for side in sides)


def test_handshake_connection_that_is_not_expected_is_rejected() -> None:
    asked = []

    def is_expected(key: Key) -> bool:
        asked.append(key)
        return False

    sides = converse(Side(world(3)), Side(world(0)), 7, 5, is_expected)
    assert asked == [Key(3, 7, 5)]
    assert "not expected" in (sides[1].outcome or "")
    assert sides[1].sent == []


def test_handshake_that_a_fork_copied_amid_a_step_is_closed() -> None:
    ours, theirs = socket.socketpair()

    def close_amid(key: Key) -> bool:
        accepted.close()
        return False

    accepted = PendingConnection(world(0), ours, "", close_amid)
    dialled = PendingConnection(world(1), theirs, "", Key(0, CONTROL, 0))
    theirs.sendall(dialled._hello(1, Key(0, CONTROL, 0)))
    with pytest.raises(RejectedError):
        accepted.advance()
    assert ours.fileno() == -1
    dialled.close()
