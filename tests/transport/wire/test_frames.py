"""What a sealed message of the wire says to someone who holds no key, or changes it."""

import secrets
import selectors
import socket
import threading
from collections.abc import Callable

import pytest
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.wire.frames import DamagedError, FramedConnection, Seal
from hccl_py.transport.wire.handshake import SecretHandshake

SESSION = secrets.token_bytes(32)
LENGTH_BYTES, TAG_BYTES = 4, 16
LIMIT = 1 << 20


def seal() -> Seal:
    return Seal(SESSION, b"connector")


def body(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:LENGTH_BYTES], "big") == len(frame) - LENGTH_BYTES
    return frame[LENGTH_BYTES:]


@pytest.mark.parametrize("num_bytes", [0, 1, 31, 4096, 70_001])
def test_seal_hides_a_message_and_opens_it(num_bytes: int) -> None:
    sealing, opening = seal(), seal()
    for message in (bytes(num_bytes), secrets.token_bytes(num_bytes)):
        frame = body(sealing.seal(message))
        assert len(frame) == TAG_BYTES + num_bytes
        assert num_bytes < 31 or message not in frame
        assert opening.open(frame) == message


def test_equal_messages_look_different() -> None:
    sealing = seal()
    assert sealing.seal(b"the same") != sealing.seal(b"the same")
    assert seal().seal(b"the same") != Seal(SESSION, b"acceptor").seal(b"the same")


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame[:-1],
        lambda frame: frame + b"\0",
        lambda frame: bytes([frame[0] ^ 1]) + frame[1:],
        lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
        lambda frame: b"",
    ],
)
def test_changed_message_is_damaged(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(DamagedError):
        seal().open(change(body(seal().seal(b"a message"))))


def test_message_that_is_repeated_or_left_out_is_damaged() -> None:
    sealing, opening = seal(), seal()
    first, second = (body(sealing.seal(one)) for one in (b"first", b"second"))
    with pytest.raises(DamagedError):
        seal().open(second)
    assert opening.open(first) == b"first"
    with pytest.raises(DamagedError):
        opening.open(first)


class Ends:
    """Both ends of a connection in one thread, and what each was told."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.messages: tuple[list[bytes], list[bytes]] = ([], [])
        self.reasons: tuple[list[str], list[str]] = ([], [])
        handshakes = [
            SecretHandshake(one, "here", b"HCCL-TST", b"secret", number == 0)
            for number, one in enumerate(socket.socketpair())
        ]
        waiting = list(handshakes)
        while waiting:
            waiting = [one for one in waiting if one.advance() is not None]
        self.sockets = [one.socket for one in handshakes]
        self.ends = [
            FramedConnection(self.selector, one, LIMIT, messages.append, reasons.append)
            for one, messages, reasons in zip(handshakes, self.messages, self.reasons, strict=True)
        ]

    def turn(self) -> bool:
        for ready, _ in self.selector.select(0.01):
            ready.data()
        return True

    def await_that(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: self.turn() and bool(condition()), "it comes", HANG_S)


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_messages_of_all_sizes_come_in_their_order(ends: Ends) -> None:
    sent = [secrets.token_bytes(size) for size in (1, 100_000, LIMIT, 3)]
    for message in sent:
        ends.ends[0].send(message)
        ends.ends[1].send(message[::-1])
    ends.await_that(lambda: all(len(one) == len(sent) for one in ends.messages))
    assert ends.messages[1] == sent
    assert ends.messages[0] == [one[::-1] for one in sent]


def test_beat_is_answered_by_the_end_that_dialled_and_is_no_message(ends: Ends) -> None:
    before_s = ends.ends[1].received_s
    ends.ends[1].send(b"")
    ends.await_that(lambda: ends.ends[1].received_s > before_s)
    assert ends.messages == ([], [])


@pytest.mark.parametrize("garbage", [bytes(4), b"\xff" * 4, b"\0\0\0\x20" + bytes(32)])
def test_bytes_that_are_no_frame_end_the_connection(ends: Ends, garbage: bytes) -> None:
    ends.sockets[0].sendall(garbage)
    ends.await_that(lambda: ends.reasons[1])
    assert ends.messages[1] == []
    ends.await_that(lambda: ends.reasons[0] == ["it closed the connection"])


def test_what_was_sent_arrives_although_its_end_closes(ends: Ends) -> None:
    ends.ends[1].send(b"that the other one does not read")
    message = secrets.token_bytes(LIMIT)
    ends.ends[0].send(message)
    ends.selector.unregister(ends.sockets[0])
    ends.selector.register(ends.sockets[0], selectors.EVENT_READ, lambda: None)
    received: list[bytes] = ends.messages[1]
    closing = threading.Thread(target=lambda: ends.ends[0].close(Deadline(HANG_S).end_s))
    closing.start()
    ends.await_that(lambda: received)
    closing.join()
    assert received == [message]


def test_last_words_are_read_although_nothing_can_be_sent_any_more(ends: Ends) -> None:
    ends.ends[1].send(b"last words")
    ends.ends[1].close()
    for _ in range(3):
        ends.ends[0].send(b"to nobody")
    ends.await_that(lambda: ends.reasons[0])
    assert ends.messages[0] == [b"last words"]


def test_end_that_does_not_read_is_given_up(ends: Ends) -> None:
    for _ in range(40):
        ends.ends[0].send(bytes(LIMIT))
    assert ends.reasons[0] == ["it does not read what it is sent"]
