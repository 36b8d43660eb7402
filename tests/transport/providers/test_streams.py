"""Connections that are objects, written in Python or faulty: engines as threads over them."""

import socket
import threading
from collections.abc import Callable

import numpy as np
import pytest

from hccl_py.transport import _core

TIMEOUT_S = 60.0


class PythonStream(_core.Stream):
    """A socket, the long way round; counts the bytes that pass."""

    def __init__(self, connected: socket.socket) -> None:
        super().__init__()
        connected.setblocking(False)
        self.num_bytes = 0
        self._socket = connected

    def fd(self) -> int:
        return self._socket.fileno()

    def send(self, data: memoryview) -> int:
        try:
            num_sent = self._socket.send(data)
        except BlockingIOError:
            return 0
        self.num_bytes += num_sent
        return num_sent

    def receive(self, buffer: memoryview) -> int:
        try:
            num_received = self._socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if num_received == 0:
            raise ConnectionResetError("the connection was closed")
        return num_received

    def close(self) -> None:
        self._socket.close()


Make = Callable[[socket.socket], "_core.Connection"]


def connected_engines(make: Make) -> tuple[_core.Communicator, _core.Communicator]:
    """Return ranks 0 and 1, whose lanes run over what `make` makes of sockets."""
    progress = _core.ProgressThread()
    engines = [
        _core.Communicator.create(
            progress=progress,
            rank=rank,
            world_size=2,
            local_ranks=[rank],
            num_channels=1,
            num_slots=2,
            slot_bytes=32768,
            arena=None,
        )
        for rank in (0, 1)
    ]
    pairs = [socket.socketpair() for _ in range(3)]
    for pair in pairs:
        for end in pair:
            end.setblocking(False)
    for rank, engine in enumerate(engines):
        lanes = [[make(pair[rank])] for pair in pairs[:2]]
        engine.add_tcp_peer(1 - rank, lanes, [pairs[2][rank].detach()], ["a pair of sockets"])
    return engines[0], engines[1]


def exchange(engines: tuple[_core.Communicator, _core.Communicator], size: int) -> None:
    """Send from rank 0 to 1 and back; check what came."""
    sent = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    received = [np.zeros_like(sent), np.zeros_like(sent)]

    def run(rank: int, sends: bool, array: np.ndarray) -> None:
        engines[rank].run_transfer(
            sends, array.ctypes.data, array.nbytes, 1 - rank, 7, TIMEOUT_S, array
        )

    def answer() -> None:
        run(1, False, received[1])
        run(1, True, received[1])

    def look_after() -> None:
        # What a faulty stream holds back goes out when somebody looks, as the repair thread does.
        while not over.wait(0.005):
            for engine in engines:
                assert engine.take_broken() == []

    over = threading.Event()
    threads = [threading.Thread(target=target) for target in (answer, look_after)]
    for thread in threads:
        thread.start()
    try:
        run(0, True, sent)
        run(0, False, received[0])
    finally:
        threads[0].join(TIMEOUT_S)  # its last acknowledgement may be held back as well
        over.set()
        threads[1].join(TIMEOUT_S)
    for array in received:
        np.testing.assert_array_equal(array, sent)


@pytest.mark.parametrize("size", [0, 1, 4097, 1_000_003])
def test_streams_written_in_python_carry_messages(size: int) -> None:
    streams: list[PythonStream] = []

    def make(end: socket.socket) -> PythonStream:
        streams.append(PythonStream(end))
        return streams[-1]

    engines = connected_engines(make)
    exchange(engines, size)
    assert sum(stream.num_bytes for stream in streams) > 2 * size
    for engine in engines:
        engine.close()


def test_streams_that_delay_and_slow_down_lose_nothing() -> None:
    faulty: list[_core.FaultyStream] = []

    def make(end: socket.socket) -> _core.FaultyStream:
        faulty.append(
            _core.FaultyStream(
                PythonStream(end), 5, delay=0.5, longest_delay_s=0.01, bytes_per_second=50e6
            )
        )
        return faulty[-1]

    engines = connected_engines(make)
    for size in (0, 333, 300_001):
        exchange(engines, size)
    assert sum(stream.num_faults() for stream in faulty) > 0
    for engine in engines:
        engine.close()
