"""One end of hccl-perftest: a queue pair, its memory, and the measurements over them."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.bench._perftest import PerftestEnd, copy_stream, socket_ping_pong, socket_stream
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
"""Depth for two periods in which one request is signaled, see csrc/perftest/module.cc."""
_OPCODES = {"send": Opcode.SEND, "write": Opcode.RDMA_WRITE, "read": Opcode.RDMA_READ}
_ANY_ACCESS = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ


@dataclass(frozen=True)
class Setup:
    """The settings of both ends.

    Attributes:
        device: provider.
        largest_bytes: largest message.
        window: requests in flight.
        registered: whether the memory is registered, so that shm lets the peer read it directly.
        compare: whether to measure a plain socket or memcpy too.
    """

    device: str
    largest_bytes: int
    window: int
    registered: bool
    compare: bool


class Exchange(NamedTuple):
    """One measurement."""

    op: str  # send, write, read, or the peer that they are compared with: socket, memcpy
    latency: bool  # one message at a time, or as many as the window allows
    num_bytes: int  # of a message
    iterations: int  # messages


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
        with ExitStack() as opened:
            self._end, self._socket = self._connect(opened)
            self._opened = opened.pop_all()

    def __enter__(self) -> End:
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the device and all that uses it."""
        self._opened.close()

    def run(self, exchange: Exchange) -> list[float]:
        """Run one exchange together with the other end, and check what arrived.

        Returns:
            Microseconds of each message with `latency`, else one number, the seconds for all. The
            list is for the end that starts; that of the other end may be empty.

        Raises:
            ArithmeticError: a byte differs from what the other end sent.
        """
        n = exchange.num_bytes
        self._memory[:n] = _pattern(exchange, by_client=self._starts)
        self._memory[n : 2 * n] = 0
        self._link.send(exchange if self._starts else "ready")
        if self._starts:
            self._link.receive()
        times = self._loop(exchange)
        # A passive end must not read its memory before the other end is done with it.
        self._link.exchange("ended")
        self._check(exchange)
        return times

    def serve(self) -> None:
        """Run the exchanges that the other end asks for until it finishes."""
        while (message := self._link.receive(timeout_s=3600)) is not None:
            self.run(Exchange(*message))

    def finish(self) -> None:
        """Ask the other end to stop serving."""
        self._link.send(None)

    def _connect(self, opened: ExitStack) -> tuple[PerftestEnd, socket.socket | None]:
        setup, device = self._setup, opened.enter_context(closing(Device(self._setup.device)))
        domain = ProtectionDomain(device)
        queue = CompletionQueue(device, capacity=4 * setup.window)
        region = domain.register(self._memory, _ANY_ACCESS)
        deepest = max(setup.window, _UNSIGNALED)
        attributes = QueuePairAttributes(
            max_send_wr=deepest, max_recv_wr=deepest, max_inline=_INLINE_BYTES
        )
        pair = QueuePair(domain, queue, attributes=attributes)
        pair.modify(State.INIT)
        needs_socket = setup.compare and setup.device != "shm"
        plain = RendezvousEndpoint() if needs_socket else None
        mine = pair.address, region.address, region.rkey, plain.address if plain else b""
        address, remote_address, rkey, plain_address = self._link.exchange(mine)
        pair.connect(address, timeout_s=_CONNECT_TIMEOUT_S)
        connected = None
        if plain is not None:
            with closing(plain):
                connected = plain.connect_socket(plain_address, _CONNECT_TIMEOUT_S)[1]
                opened.enter_context(connected)
        memory = (region.address, region.lkey), (remote_address, rkey)
        return PerftestEnd(pair.core, queue.core, *memory), connected

    def _loop(self, exchange: Exchange) -> list[float]:
        op, latency, num_bytes, n = exchange
        starts, end, window = self._starts, self._end, self._setup.window
        end.size = num_bytes
        times: list[float] = []
        if op == "memcpy":
            times = [copy_stream(self._memory.ctypes.data, num_bytes, n)] if starts else []
        elif op == "socket":
            assert self._socket is not None
            shape = self._socket.fileno(), self._memory.ctypes.data, num_bytes, n, starts
            times = socket_ping_pong(*shape) if latency else [socket_stream(*shape)]
        elif latency and op == "send":
            times = end.send_ping_pong(n, starts)
        elif latency and op == "write":
            times = end.write_ping_pong(n, starts)
        elif starts:
            opcode = int(_OPCODES[op])
            times = end.read_one_by_one(n) if latency else [end.stream(opcode, n, window)]
        elif op == "send":
            end.sink(n, window)
        return times

    # The oracle: every byte depends on its offset, on the exchange and on the sender.

    def _check(self, exchange: Exchange) -> None:
        receives_here = {"read": self._starts, "memcpy": self._starts}
        receives = receives_here.get(exchange.op, exchange.latency or not self._starts)
        if not receives:
            return
        n = exchange.num_bytes
        from_client = self._starts if exchange.op == "memcpy" else not self._starts
        expected = _pattern(exchange, by_client=from_client)
        # In write's ping-pong the last byte is the mark that the receiver waits for.
        checked = n - 1 if exchange.op == "write" and exchange.latency else n
        wrong = int(np.count_nonzero(self._memory[n : n + checked] != expected[:checked]))
        if wrong:
            raise ArithmeticError(f"{exchange.op}: {wrong} of {n} bytes arrived wrong")


def _pattern(exchange: Exchange, *, by_client: bool) -> npt.NDArray[np.uint8]:
    # The period is a prime, so that data at a wrong offset differs.
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
