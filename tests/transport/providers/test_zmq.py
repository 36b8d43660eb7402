"""The zmq provider alone: promises of `provider.Lane`, and what CURVE is there for."""

import contextlib
import errno
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import zmq
from network_resets import open_sockets, reset
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.schedulers.ports import free_port
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.providers.interface import Lane, ProviderSettings
from hccl_py.transport.providers.zmq.provider import QUEUED_MESSAGES, ZmqProvider

SLOT_BYTES = 128 * 1024
TIMEOUT_S = HANG_S / 2
HEADER = struct.Struct("QQQIHH")


def header(num_bytes: int, number: int = 0) -> bytes:
    """Return a header as the engine makes it."""
    return HEADER.pack(0, number, 0, num_bytes, 0, 0)


def connect_all(
    providers: list[ZmqProvider], addresses: list[list[bytes]], timeout_s: float = TIMEOUT_S
) -> list[dict[int, list[Lane]] | Exception]:
    """Let all providers connect, each with its own view of the addresses; return the outcomes."""
    with ThreadPoolExecutor(len(providers)) as threads:
        futures = [
            threads.submit(provider.connect, view, Deadline(timeout_s))
            for provider, view in zip(providers, addresses, strict=True)
        ]
        return [
            future.exception() or future.result()  # type: ignore[misc]
            for future in futures
        ]


@contextlib.contextmanager
def two_providers() -> Iterator[list[ZmqProvider]]:
    """Make the providers of two ranks, with one lane; not connected yet."""
    providers = [ZmqProvider(ProviderSettings(rank, 2, 1, "127.0.0.1")) for rank in range(2)]
    try:
        yield providers
    finally:
        for provider in providers:
            provider.close()


def lanes_between(providers: list[ZmqProvider]) -> list[Lane]:
    """Connect two ranks by one lane; rank 0 is dialled."""
    addresses = [provider.address() for provider in providers]
    outcomes = connect_all(providers, [addresses, addresses])
    return [outcome[1 - rank][0] for rank, outcome in enumerate(outcomes)]  # type: ignore[index]


def wait_for(lane: Lane, attempt: Callable[[], object]) -> object:
    """Try again each time the lane has news, until something comes of it."""
    deadline = time.monotonic() + TIMEOUT_S
    with select.epoll() as sleeper:
        sleeper.register(lane.fd(), select.EPOLLIN)
        while not (result := attempt()):
            assert sleeper.poll(deadline - time.monotonic()), "no news"
    return result


def receive(lane: Lane) -> bytes:
    message = wait_for(lane, lane.receive)
    return bytes(memoryview(message))  # type: ignore[arg-type]


class Driver:
    """Does what the engine does with one lane: asks only when there is news, then sleeps."""

    def __init__(self, lane: Lane, count: int, seed: int) -> None:
        self._lane = lane
        self._random = random.Random(seed)
        self._to_send = [self._random.choice([0, 100, 50_000]) for _ in range(count)]
        self.received = 0
        self._count = count
        self._sleeper = select.epoll()
        self._sleeper.register(lane.fd(), select.EPOLLIN | select.EPOLLET)
        self._news = select.poll()
        self._news.register(lane.fd(), select.POLLIN)
        self._refused = self._drained = False

    def run(self) -> None:
        while self._to_send or self.received < self._count:
            if not (self._send() | self._receive()):
                assert self._sleeper.poll(TIMEOUT_S), "a wake-up was lost"
        self._sleeper.close()

    def _send(self) -> bool:
        if not self._to_send or (self._refused and not self._news.poll(0)):
            return False
        size = self._to_send[0]
        sent = self._lane.send(header(size, len(self._to_send)), memoryview(bytes(size)))
        self._refused = not sent
        if sent:
            self._to_send.pop(0)
        return sent

    def _receive(self) -> bool:
        if self._drained and not self._news.poll(0):
            return False
        message = self._lane.receive()
        self._drained = message is None
        if message is None:
            return False
        number = HEADER.unpack(memoryview(message)[: HEADER.size])[1]
        assert number == self._count - self.received
        self.received += 1
        return True


def test_both_directions_full_lose_no_wake_up() -> None:
    count = 2000
    with two_providers() as providers:
        lanes = lanes_between(providers)
        drivers = [Driver(lane, count, seed) for seed, lane in enumerate(lanes)]
        threads = [threading.Thread(target=driver.run) for driver in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert [driver.received for driver in drivers] == [count, count]


def sockets_of(ports: set[int]) -> Iterator[int]:
    """Yield this process's connections to or from these ports."""
    for descriptor, copy in open_sockets():
        with contextlib.suppress(OSError):
            here, there = copy.getsockname(), copy.getpeername()
            if copy.family == socket.AF_INET and {here[1], there[1]} & ports:
                yield descriptor


def test_resets_lose_double_and_reorder_nothing() -> None:
    count = 400
    with two_providers() as providers:
        lanes = lanes_between(providers)
        drivers = [Driver(lane, count, seed) for seed, lane in enumerate(lanes)]
        threads = [threading.Thread(target=driver.run) for driver in drivers]
        for thread in threads:
            thread.start()
        num_resets, until_s = 0, time.monotonic() + HANG_S
        while any(thread.is_alive() for thread in threads) and time.monotonic() < until_s:
            for descriptor in sockets_of(set(providers[0]._ports)) if num_resets < 20 else ():
                reset(descriptor)
                num_resets += 1
            time.sleep(0.1)
            for driver, thread in zip(drivers, threads, strict=True):
                if not thread.is_alive():  # as the engine does while no call moves the lane
                    driver._lane.tend()  # type: ignore[attr-defined]
        for thread in threads:
            thread.join(HANG_S)
        assert [driver.received for driver in drivers] == [count, count]
        assert num_resets > 0


def test_lane_that_is_reset_while_its_peer_makes_no_call_stands_again() -> None:
    with two_providers() as providers:
        lanes = lanes_between(providers)
        for descriptor in sockets_of(set(providers[0]._ports)):
            reset(descriptor)
        dialling: Any = lanes[1]
        wait_until(lambda: dialling.standing and dialling._num_breaks, "a new connection")


def test_provider_that_gets_no_descriptor_for_a_lane_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    raised: list[Exception] = []

    def make() -> None:
        try:
            ZmqProvider(ProviderSettings(0, 2, 1, "127.0.0.1"))
        except Exception as error:
            raised.append(error)

    monkeypatch.setattr(select, "epoll", refuse)
    thread = threading.Thread(target=make, daemon=True)  # ZeroMQ's wait sees no signal
    thread.start()
    thread.join(HANG_S)
    assert [type(error) for error in raised] == [BootstrapError]


class SpoilingProxy:
    """Passes a connection on, with one byte of each larger packet changed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._pool = ThreadPoolExecutor(64)
        self._pool.submit(self._serve)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._port))
                for ends in ((here, there), (there, here)):
                    self._pool.submit(self._pass_on, *ends)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with source, sink, contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                if len(data) > 1000:  # no packet of a handshake is so long
                    data[-1] ^= 1
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._pool.shutdown(wait=False)


@pytest.mark.nightly("faults")
def test_network_that_changes_bytes_is_named_as_the_trouble() -> None:
    with two_providers() as providers:
        addresses = [provider.address() for provider in providers]
        key, address, ports = msgpack.unpackb(addresses[0])
        proxy = SpoilingProxy(struct.unpack("!H", ports)[0])
        spoilt = [msgpack.packb([key, address, struct.pack("!H", proxy.port)]), addresses[1]]
        outcomes = connect_all(providers, [addresses, spoilt])
        lanes = [outcome[1 - rank][0] for rank, outcome in enumerate(outcomes)]  # type: ignore[index]
        assert lanes[1].trouble() is None
        assert lanes[1].send(header(SLOT_BYTES), memoryview(bytes(SLOT_BYTES)))
        until_s = time.monotonic() + TIMEOUT_S
        while lanes[0].trouble() is None or "2 connections" not in lanes[0].trouble()[1]:
            assert time.monotonic() < until_s, lanes[0].trouble()
            for lane in lanes:
                lane.tend()
            time.sleep(0.01)
        assert "the network broke" in lanes[0].trouble()[1]
        assert lanes[0].receive() is None
        proxy.close()


@pytest.mark.parametrize("closing", [0, 1])
def test_close_delivers_what_was_sent_then_the_peer_raises(closing: int) -> None:
    with two_providers() as providers:
        lanes = lanes_between(providers)
        for number in range(QUEUED_MESSAGES):
            assert lanes[closing].send(header(SLOT_BYTES, number), memoryview(bytes(SLOT_BYTES)))
        providers[closing].close()
        other = lanes[1 - closing]
        for number in range(QUEUED_MESSAGES):
            assert HEADER.unpack(receive(other)[: HEADER.size])[1] == number
        other.peer_has_ended()  # type: ignore[attr-defined]
        for _ in range(2):  # and again when asked again
            with pytest.raises(ConnectionError, match="was closed"):
                wait_for(other, other.receive)
        with pytest.raises(ConnectionError, match="was closed"):
            other.send(header(0), memoryview(b""))


def test_port_range_is_kept_and_named_when_it_is_used_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BootstrapError, match=f"every port of HCCL_PORT_RANGE={port}-{port}"):
            ZmqProvider(ProviderSettings(0, 2, 1, "127.0.0.1", range(port, port + 1)))
    wanted = range(first := free_port(), first + 50)
    provider = ZmqProvider(ProviderSettings(0, 2, 3, "127.0.0.1", wanted))
    ports = struct.unpack("!3H", msgpack.unpackb(provider.address())[2])
    provider.close()
    assert len(set(ports)) == 3
    assert set(ports) <= set(wanted)


@pytest.mark.parametrize("imposter", [0, 1], ids=["dialled", "dialling"])
def test_wrong_key_is_rejected(imposter: int) -> None:
    with two_providers() as providers:
        addresses = [provider.address() for provider in providers]
        _, *place = msgpack.unpackb(addresses[imposter])
        believed = list(addresses)
        believed[imposter] = msgpack.packb([zmq.curve_keypair()[0], *place])
        views = [addresses, addresses]
        views[1 - imposter] = believed
        outcomes = connect_all(providers, views, timeout_s=1)
    assert all(isinstance(outcome, BootstrapError) for outcome in outcomes), outcomes
    if imposter == 1:
        assert "rank 0 rejected lane 0: its key is not the one" in str(outcomes[1])
    else:
        assert "zmq connections are missing" in str(outcomes[0])
