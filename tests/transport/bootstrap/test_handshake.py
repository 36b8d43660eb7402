"""The handshake byte by byte, without sockets."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from hccl_py.transport.bootstrap.handshake import (
    CONTROL,
    Handshake,
    Party,
    Receive,
    Received,
    RejectedError,
    Send,
    Steps,
)
from hccl_py.transport.network.identity import Member

MEMBERS = tuple(Member(rank, f"host{rank}", 100 + rank, node=rank // 2) for rank in range(4))
COMMUNICATOR_ID = b"c" * 16
SECRET = b"s" * 32


def party(rank: int) -> Party:
    return Party(rank, MEMBERS, COMMUNICATOR_ID, SECRET, (10 * rank, 10 * rank + 1, 10 * rank + 2))


@dataclass
class Side:
    """One generator, with what it was sent and what became of it."""

    steps: Steps
    inbox: bytes = b""
    descriptors: tuple[int, ...] = ()
    outcome: str | None = None
    request: Send | Receive | None = None
    sent: list[bytes] = field(default_factory=list)

    def take(self, answer: Received | None) -> None:
        try:
            self.request = next(self.steps) if answer is None else self.steps.send(answer)
        except StopIteration:
            self.outcome = "done"
        except RejectedError as refusal:
            self.outcome = str(refusal)


def no_tampering(sender: int, position: int, data: bytes) -> bytes:
    return data


def flip_byte(side: int, target: int, sender: int, position: int, data: bytes) -> bytes:
    if sender != side or not position <= target < position + len(data):
        return data
    changed = bytearray(data)
    changed[target - position] ^= 0x40
    return bytes(changed)


def converse(
    connector: Steps, acceptor: Steps, tamper: Callable[[int, int, bytes], bytes] = no_tampering
) -> list[Side]:
    """Run both sides until neither can go on; `tamper(sender, position, data)` is the wire."""
    sides = [Side(connector), Side(acceptor)]
    for side in sides:
        side.take(None)
    went_on = True
    while went_on:
        went_on = False
        for me, (side, other) in enumerate(zip(sides, reversed(sides), strict=True)):
            if side.outcome is not None:
                continue
            if isinstance(side.request, Send):
                position = sum(map(len, side.sent))
                side.sent.append(side.request.data)
                other.inbox += tamper(me, position, side.request.data)
                other.descriptors += side.request.descriptors
                side.take(Received())
                went_on = True
            elif isinstance(side.request, Receive):
                size = side.request.num_bytes
                if len(side.inbox) >= size:
                    data, side.inbox = side.inbox[:size], side.inbox[size:]
                    side.take(Received(data, side.descriptors))
                    went_on = True
    return sides


def pair(
    connector: int, acceptor: int, index: int = CONTROL
) -> tuple[Handshake, Handshake, Steps, Steps]:
    a, b = Handshake(party(connector)), Handshake(party(acceptor))
    return a, b, a.connect(MEMBERS[acceptor], index), b.accept(lambda rank, number, path: True)


@pytest.mark.parametrize("connector, index, descriptors", [(1, CONTROL, (0, 1, 2)), (3, 2, ())])
def test_handshake_between_members_succeeds_on_both_sides(
    connector: int, index: int, descriptors: tuple[int, ...]
) -> None:
    a, b, connect, accept = pair(connector, 0, index)
    sides = converse(connect, accept)
    assert [side.outcome for side in sides] == ["done", "done"]
    assert [side.inbox for side in sides] == [b"", b""]
    assert sides[0].descriptors == descriptors
    assert (b.peer, b.index, a.authenticated, b.authenticated) == (
        MEMBERS[connector],
        index,
        True,
        True,
    )


def test_handshake_every_changed_byte_is_rejected() -> None:
    _, _, connect, accept = pair(1, 0)
    lengths = [sum(map(len, side.sent)) for side in converse(connect, accept)]
    assert min(lengths) > 76 + 32 + 36
    for sender, length in enumerate(lengths):
        for target in range(length):
            _, _, connect, accept = pair(1, 0)
            wire = partial(flip_byte, sender, target)
            receiver = converse(connect, accept, wire)[1 - sender]
            # A changed length may leave the receiver waiting for bytes that never come.
            assert receiver.outcome != "done", f"byte {target} of side {sender} was not protected"


def test_handshake_stranger_gets_nothing_but_a_hello() -> None:
    _, acceptor, connect, accept = pair(1, 0)

    def guess_proof(sender: int, position: int, data: bytes) -> bytes:
        return bytes(32) if sender == 0 and position == 76 else data

    sides = converse(connect, accept, guess_proof)
    assert "secret" in (sides[1].outcome or "")
    assert list(map(len, sides[1].sent)) == [76]
    assert not acceptor.authenticated


@pytest.mark.parametrize(
    "change",
    [{"secret": b"t" * 32}, {"communicator_id": b"d" * 16}],
    ids=["secret", "communicator"],
)
@pytest.mark.parametrize("outsider", [0, 1])
def test_handshake_outsider_is_rejected(change: dict[str, bytes], outsider: int) -> None:
    parties = [party(1), party(0)]
    parties[outsider] = replace(parties[outsider], **change)
    a, b = Handshake(parties[0]), Handshake(parties[1])
    sides = converse(a.connect(MEMBERS[0], CONTROL), b.accept(lambda rank, index, path: True))
    assert "done" not in [side.outcome for side in sides]
    assert not a.authenticated and not b.authenticated


def test_handshake_connection_that_is_not_expected_is_rejected() -> None:
    asked = []

    def is_expected(rank: int, index: int, path: int) -> bool:
        asked.append((rank, index, path))
        return False

    connect = Handshake(party(3)).connect(MEMBERS[0], 7, 5)
    sides = converse(connect, Handshake(party(0)).accept(is_expected))
    assert asked == [(3, 7, 5)]
    assert "not expected" in (sides[1].outcome or "")
    assert sides[1].sent == []


def test_handshake_rank_replaced_by_another_process_is_rejected() -> None:
    replaced = tuple(replace(member, pid=7) if member.rank == 1 else member for member in MEMBERS)
    impostor = Handshake(replace(party(1), members=replaced))
    acceptor = Handshake(party(0))
    sides = converse(impostor.connect(MEMBERS[0], CONTROL), acceptor.accept(lambda r, i, p: True))
    assert "not the process that met at the store" in (sides[1].outcome or "")
