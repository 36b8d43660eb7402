"""Two connected zmq lanes in one process, directly or through a wire-tap."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.providers.interface import Lane, Site
from hccl_py.transport.providers.zmq.provider import ZmqProvider

TIMEOUT_S = 10.0
HEADER = struct.Struct("QQQIHH")


def header(num_bytes: int, number: int = 0) -> bytes:
    """Return a header as the engine makes it."""
    return HEADER.pack(0, number, 0, num_bytes, 0, 0)


def connect_all(
    providers: list[ZmqProvider], cards: list[list[bytes]], timeout_s: float = TIMEOUT_S
) -> list[dict[int, list[Lane]] | Exception]:
    """Let all providers connect, each with its own view of the cards; return what came of it."""
    with ThreadPoolExecutor(len(providers)) as threads:
        futures = [
            threads.submit(provider.connect, view, Deadline(timeout_s))
            for provider, view in zip(providers, cards, strict=True)
        ]
        return [
            future.exception() or future.result()  # type: ignore[misc]
            for future in futures
        ]


@contextlib.contextmanager
def two_providers(address: str = "127.0.0.1") -> Iterator[list[ZmqProvider]]:
    """Make the providers of two ranks, with one lane; not connected yet."""
    with contextlib.ExitStack() as opened:
        providers = []
        for rank in range(2):
            providers.append(ZmqProvider(Site(rank, 2, 1, address)))
            opened.callback(providers[-1].close)
        yield providers


@contextlib.contextmanager
def lane_pair(address: str = "127.0.0.1") -> Iterator[list[Lane]]:
    """Connect two ranks by one lane; rank 0 is dialled."""
    with two_providers(address) as providers:
        cards = [provider.card() for provider in providers]
        first, second = connect_all(providers, [cards, cards])
        assert isinstance(first, dict), first
        assert isinstance(second, dict), second
        yield [first[1][0], second[0][0]]
