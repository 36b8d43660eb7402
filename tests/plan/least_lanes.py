"""Lanes with the least room that a provider may have, for ranks that are threads.

A lane holds one message, until its receiver asks for the next one; the engine copies one more
(`Lane::detach`). `HCCL_TRANSPORT=least_lanes:LeastProvider` uses them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock

from hccl_py.transport.deadline import Deadline
from hccl_py.transport.providers.interface import ProviderSettings

_numbers = itertools.count()
_ways: dict[tuple[bytes, bytes, int], _Way] = {}
_lock = Lock()


class _Way:
    """From one rank to another."""

    def __init__(self) -> None:
        self.message: bytes | None = None
        self.is_taken = False
        # Whether an end was told to come again, and the descriptor that tells it.
        self.sender_waits = self.receiver_waits = False
        self.sender_fd = self.receiver_fd = -1


class LeastLane:
    def __init__(self, out: _Way, into: _Way) -> None:
        self._out, self._into = out, into
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        out.sender_fd = into.receiver_fd = self._fd

    def send(self, header: bytes, payload: memoryview, /) -> bool:
        with _lock:
            out = self._out
            out.sender_waits = out.message is not None
            if not out.sender_waits:
                out.message = header + bytes(payload)
                _tell(out.receiver_fd, is_due=out.receiver_waits)
            self._settle()
            return not out.sender_waits

    def receive(self) -> bytes | None:
        with _lock:
            into = self._into
            if into.is_taken:
                into.message, into.is_taken = None, False
                _tell(into.sender_fd, is_due=into.sender_waits)
            into.receiver_waits = into.message is None
            into.is_taken = not into.receiver_waits
            self._settle()
            return into.message

    def _settle(self) -> None:
        """Make the descriptor readable exactly if an answer is outdated."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        can_send = self._out.sender_waits and self._out.message is None
        can_receive = self._into.receiver_waits and self._into.message is not None
        _tell(self._fd, is_due=can_send or can_receive)

    def fd(self) -> int:
        return self._fd

    def close(self) -> None:
        with _lock:
            if self._fd >= 0:
                self._out.sender_fd = self._into.receiver_fd = -1
                os.close(self._fd)
            self._fd = -1


def _tell(fd: int, *, is_due: bool) -> None:
    if is_due and fd >= 0:
        os.eventfd_write(fd, 1)


class LeastProvider:
    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._address = str(next(_numbers)).encode()

    def address(self) -> bytes:
        return self._address

    def connect(
        self, addresses: Sequence[bytes], _deadline: Deadline
    ) -> Mapping[int, Sequence[LeastLane]]:
        with _lock:
            return {
                peer: [
                    LeastLane(
                        self._way(self._address, other, lane), self._way(other, self._address, lane)
                    )
                    for lane in range(self._settings.num_lanes)
                ]
                for peer, other in enumerate(addresses)
                if peer != self._settings.rank
            }

    def _way(self, source: bytes, target: bytes, lane: int) -> _Way:
        return _ways.setdefault((source, target, lane), _Way())

    def close(self) -> None:
        pass
