"""One end of hccl-perftest: a queue pair, its memory, and what is run over them."""

from __future__ import annotations

import socket
from contextlib import closing
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from hccl_py.bench.verbs.link import Link
from hccl_py.transport import _core
from hccl_py.transport.arena import arena_of_this_process
from hccl_py.transport.verbs import (
    Access,
    CompletionQueue,
    Device,
    Opcode,
    ProtectionDomain,
    QueuePair,
    QueuePairAttributes,
    State,
)
from hccl_py.transport.verbs.endpoints import RendezvousEndpoint

_CONNECT_TIMEOUT_S = 30.0
_INLINE_BYTES = 64
_UNSIGNALED = 32
"""Room for two of the periods in which one request is signaled, see csrc/perftest/loops.cc."""
_OPCODES = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "read": Opcode.RDMA_READ}
_ANY_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


@dataclass(frozen=True)
class Setup:
    """What both ends are built for.

    Attributes:
        device: provider.
        largest_bytes: largest message.
        window: requests under way.
        registered: whether the memory is such that a peer on the node reads it in place.
        compare: whether the ends need a plain socket too.
    """

    device: str
    largest_bytes: int
    window: int
    registered: bool
    compare: bool


@dataclass(frozen=True)
class Exchange:
    """One measurement.

    Attributes:
        op: send, write, read; socket or memcpy for what they are compared with.
        latency: one message at a time, or as many as the window allows.
        num_bytes: of a message.
        iterations: messages.
    """

    op: str
    latency: bool
    num_bytes: int
    iterations: int


class End:
    """One end. A context manager; both ends call the same methods in the same order."""

    def __init__(self, setup: Setup, link: Link, *, starts: bool) -> None:
        """Connect with the other end.

        Args:
            setup: equal on both ends.
            link: to the other end.
            starts: whether this end is the client.
        """
        self._setup, self._link, self._starts = setup, link, starts
        self._memory = _allocate(2 * setup.largest_bytes, registered=setup.registered)
        self._address = int(self._memory.ctypes.data)
        self._socket: socket.socket | None = None
        self._device = Device(setup.device)
        try:
            self._connect()
        except BaseException:
            self._device.close()
            raise

    def __enter__(self) -> End:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the device and what belongs to it."""
        self._device.close()
        if self._socket is not None:
            self._socket.close()

    def run(self, exchange: Exchange) -> list[float]:
        """Run one exchange together with the other end, and check what arrived.

        Returns:
            Latency: microseconds of each message. Otherwise one number: seconds for all. The end
            that does not start gets what it measured, which may be nothing.

        Raises:
            ArithmeticError: a byte arrived that was not sent.
        """
        self._fill(exchange)
        self._link.send(asdict(exchange) if self._starts else "ready")
        if self._starts:
            self._link.receive()
        times = self._loop(exchange)
        # A passive end must not read its memory before the other end is done with it.
        self._link.send("ended")
        self._link.receive()
        self._check(exchange)
        return times

    def serve(self) -> None:
        """Run what the other end asks for until it has enough."""
        while True:
            message = self._link.receive(timeout_s=3600)
            if message is None:
                return
            self.run(Exchange(**message))

    def finish(self) -> None:
        """Ask the other end to stop serving."""
        self._link.send(None)

    def _connect(self) -> None:
        window = self._setup.window
        domain = ProtectionDomain(self._device)
        queue = CompletionQueue(self._device, capacity=4 * window)
        region = domain.register(self._memory, _ANY_ACCESS)
        deepest = max(window, _UNSIGNALED)
        attributes = QueuePairAttributes(
            max_send_wr=deepest, max_recv_wr=deepest, max_inline=_INLINE_BYTES
        )
        pair = QueuePair(domain, queue, attributes=attributes)
        pair.modify(State.INIT)
        needs_socket = self._setup.compare and self._setup.device != "shm"
        plain = RendezvousEndpoint() if needs_socket else None
        self._link.send(
            [pair.address, region.address, region.rkey, plain.address if plain else b""]
        )
        address, remote_address, rkey, plain_address = self._link.receive()
        pair.connect(address, timeout_s=_CONNECT_TIMEOUT_S)
        if plain is not None:
            with closing(plain):
                self._socket = plain.connect_socket(plain_address, _CONNECT_TIMEOUT_S)[1]
        self._end = _core.PerftestEnd(
            pair.core, queue.core, (region.address, region.lkey), (remote_address, rkey)
        )

    def _loop(self, exchange: Exchange) -> list[float]:
        n, starts, end, window = exchange.iterations, self._starts, self._end, self._setup.window
        end.size = exchange.num_bytes
        if exchange.op == "memcpy":
            return _core.copy_times(self._address, exchange.num_bytes, n) if starts else []
        if exchange.op == "socket":
            assert self._socket is not None
            shape = self._socket.fileno(), self._address, exchange.num_bytes, n, starts
            if exchange.latency:
                return _core.socket_ping_pong(*shape)
            return [_core.socket_stream(*shape)]
        if exchange.latency and exchange.op == "send":
            return end.send_ping_pong(n, starts)
        if exchange.latency and exchange.op == "write":
            return end.write_ping_pong(n, starts)
        if not starts:
            if exchange.op == "send":
                end.sink(n, window)
            return []
        if exchange.latency:
            return end.read_one_by_one(n)
        return [end.stream(int(_OPCODES[exchange.op]), n, window)]

    # The oracle: every byte that arrives depends on its place, on the exchange and on who sent it.

    def _fill(self, exchange: Exchange) -> None:
        n = exchange.num_bytes
        self._memory[:n] = _pattern(exchange, by_client=self._starts)
        self._memory[n : 2 * n] = 0

    def _check(self, exchange: Exchange) -> None:
        receives_here = {"read": self._starts, "memcpy": self._starts}
        receives = receives_here.get(exchange.op, exchange.latency or not self._starts)
        if not receives:
            return
        n = exchange.num_bytes
        from_client = self._starts if exchange.op == "memcpy" else not self._starts
        expected = _pattern(exchange, by_client=from_client)
        # In write's ping-pong the last byte counts the turns.
        checked = n - 1 if exchange.op == "write" and exchange.latency else n
        wrong = int(np.count_nonzero(self._memory[n : n + checked] != expected[:checked]))
        if wrong:
            raise ArithmeticError(f"{exchange.op}: {wrong} of {n} bytes arrived wrong")


def _pattern(exchange: Exchange, *, by_client: bool) -> npt.NDArray[np.uint8]:
    # A prime period: what lands at a wrong place, but for a multiple of it, shows.
    start = (exchange.num_bytes + exchange.iterations + (101 if by_client else 0)) % 251
    period = np.roll(np.arange(1, 252, dtype=np.uint8), start)
    return np.resize(period, exchange.num_bytes)


def _allocate(num_bytes: int, *, registered: bool) -> npt.NDArray[np.uint8]:
    if registered:
        arena = arena_of_this_process()
        if not arena.unavailable():
            return _core.Region(arena, max(num_bytes, 1)).array()
    memory: npt.NDArray[np.uint8] = np.zeros(max(num_bytes, 1), np.uint8)
    return memory
