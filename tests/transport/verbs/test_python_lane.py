"""Queue pairs over a lane that does what only one written in Python can do."""

import os
import struct
from collections.abc import Iterator

import pytest

from hccl_py.transport import _core
from hccl_py.transport.verbs import (
    CompletionQueue,
    CompletionTimeoutError,
    Device,
    ProtectionDomain,
    QueuePair,
    QueuePairAttributes,
    RecvRequest,
    State,
    Status,
)
from hccl_py.transport.verbs import device as verbs_device

_ACKNOWLEDGE = struct.pack("=QQQIHH", 0, 8 << 16, 0, 0, 0, 0)
"""A `Packet` of csrc/verbs/protocol/packet_lane.h."""


class Lane:
    """Says what the test wants, whenever it is asked."""

    def __init__(self) -> None:
        self.answer: bytes | BaseException | None = None
        self._always = os.eventfd(1)

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        return True

    def receive(self) -> bytes | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def fd(self) -> int:
        return self._always

    def close(self) -> None:
        os.close(self._always)


class Provider:
    """What a lane belongs to."""

    def close(self) -> None:
        pass


class Fixture:
    """A queue pair over such a lane, which only its completion queue drives."""

    def __init__(self, device: Device) -> None:
        self.lane = Lane()
        self.queue = CompletionQueue(device, 16)
        attributes = QueuePairAttributes(timeout_s=1, retry_count=0)
        self.pair = QueuePair(ProtectionDomain(device), self.queue, attributes=attributes)
        self.pair.modify(State.INIT)
        self.pair.attach(_core.python_underlying_lane(Provider(), self.lane))
        self.pair.modify(State.RTR)
        self.pair.modify(State.RTS)


@pytest.fixture
def over_lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    thread = _core.ProgressThread()
    thread.stop()
    monkeypatch.setattr(verbs_device, "progress_thread", lambda: thread)
    with Device("loopback") as device:
        yield Fixture(device)


def test_wait_ends_at_its_deadline_though_the_peer_never_stops(over_lane: Fixture) -> None:
    over_lane.lane.answer = _ACKNOWLEDGE
    with pytest.raises(CompletionTimeoutError):
        over_lane.queue.wait(timeout_s=0.05)
    assert over_lane.pair.state is State.RTS


@pytest.mark.parametrize("waits", [False, True])
def test_interruption_inside_a_lane_is_raised_and_ends_the_queue_pair(
    over_lane: Fixture, waits: bool
) -> None:
    over_lane.pair.post_recv(RecvRequest(wr_id=5))
    over_lane.lane.answer = KeyboardInterrupt("now")
    with pytest.raises(KeyboardInterrupt, match="now"):
        if waits:
            over_lane.queue.wait(timeout_s=10)
        else:
            over_lane.queue.poll()
    over_lane.lane.answer = None
    # A message may be lost, so that nothing can be said about what follows.
    assert over_lane.pair.state is State.ERROR
    assert "signal handler" in over_lane.pair.reason
    [flushed] = over_lane.queue.wait(timeout_s=10)
    assert (flushed.wr_id, flushed.status) == (5, Status.FLUSHED)
