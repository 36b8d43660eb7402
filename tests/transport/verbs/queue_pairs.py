"""Two connected queue pairs of one provider, and memory whose every byte is known."""

import threading
from types import TracebackType

import numpy as np
import numpy.typing as npt

from hccl_py.transport.verbs import (
    Access,
    Completion,
    CompletionQueue,
    Device,
    MemoryRegion,
    Opcode,
    ProtectionDomain,
    QueuePair,
    QueuePairAttributes,
    RecvRequest,
    SendFlags,
    SendRequest,
    State,
    Status,
)

PATIENCE_S = 60.0
ALL = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
GUARD = 0xA5

Bytes = npt.NDArray[np.uint8]


def pattern(num_bytes: int, seed: int = 0) -> Bytes:
    """Bytes that repeat after a prime number of them only."""
    period = np.roll(np.arange(251, dtype=np.uint8), seed % 251)
    return np.resize(period, num_bytes)


class End:
    """One side: its objects, and short ways to use them."""

    def __init__(
        self,
        provider: str,
        attributes: QueuePairAttributes,
        *,
        num_bytes: int,
        access: Access,
        capacity: int,
    ) -> None:
        self.device = Device(provider)
        self.domain = ProtectionDomain(self.device)
        self.queue = CompletionQueue(self.device, capacity)
        # Guard bytes on both sides of the region.
        self.guarded: Bytes = np.full(num_bytes + 128, GUARD, np.uint8)
        self.memory = self.guarded[64 : 64 + num_bytes]
        self.memory[:] = 0
        self.region = self.domain.register(self.memory, access)
        self.pair = QueuePair(self.domain, self.queue, attributes=attributes)
        self.pair.modify(State.INIT)

    def post_send(
        self,
        opcode: Opcode = Opcode.SEND,
        *,
        num_bytes: int,
        offset: int = 0,
        to: MemoryRegion | None = None,
        remote_offset: int = 0,
        wr_id: int = 0,
        imm: int = 0,
        rkey: int | None = None,
        flags: SendFlags = SendFlags.SIGNALED,
    ) -> None:
        """Post a request for `num_bytes` of the region; RDMA goes to `to`."""
        pieces = (self.region.piece(offset, num_bytes),) if num_bytes else ()
        self.pair.post_send(
            SendRequest(
                opcode,
                pieces,
                wr_id,
                flags,
                remote_address=to.address + remote_offset if to else 0,
                rkey=(to.rkey if to else 0) if rkey is None else rkey,
                imm=imm,
            )
        )

    def post_recv(self, num_bytes: int, offset: int = 0, wr_id: int = 0) -> None:
        pieces = (self.region.piece(offset, num_bytes),) if num_bytes else ()
        self.pair.post_recv(RecvRequest(pieces, wr_id))

    def take(self, count: int = 1, timeout_s: float = PATIENCE_S) -> list[Completion]:
        """Wait for exactly so many completions."""
        taken: list[Completion] = []
        while len(taken) < count:
            taken += self.queue.wait(timeout_s=timeout_s, max_completions=count - len(taken))
        return taken

    def take_one(self) -> Completion:
        [completion] = self.take()
        return completion

    def expect(self, *statuses: Status) -> list[Completion]:
        """Take as many completions as there are statuses, which must be these, in order."""
        taken = self.take(len(statuses))
        assert [one.status for one in taken] == list(statuses), taken
        return taken

    def assert_guards(self) -> None:
        assert (self.guarded[:64] == GUARD).all()
        assert (self.guarded[-64:] == GUARD).all()

    def close(self) -> None:
        self.device.close()


class Connected:
    """Two ends in RTS. A context manager; checks the guard bytes at the end."""

    def __init__(
        self,
        provider: str,
        *,
        num_bytes: int = 1 << 16,
        access: Access = ALL,
        capacity: int = 4096,
        **attributes: float,
    ) -> None:
        given = QueuePairAttributes(**attributes)  # type: ignore[arg-type]
        self.a = End(provider, given, num_bytes=num_bytes, access=access, capacity=capacity)
        self.b = End(provider, given, num_bytes=num_bytes, access=access, capacity=capacity)
        connect(self.a.pair, self.b.pair)

    def __enter__(self) -> tuple[End, End]:
        return self.a, self.b

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.a.close()
        self.b.close()
        if kind is None:
            self.a.assert_guards()
            self.b.assert_guards()


def connect(one: QueuePair, other: QueuePair) -> None:
    """Connect two queue pairs of this process, each from a thread of its own."""
    addresses = one.address, other.address
    thread = threading.Thread(
        target=one.connect, args=(addresses[1],), kwargs={"timeout_s": PATIENCE_S}, daemon=True
    )
    thread.start()
    other.connect(addresses[0], timeout_s=PATIENCE_S)
    thread.join(PATIENCE_S)
    assert one.state is State.RTS
