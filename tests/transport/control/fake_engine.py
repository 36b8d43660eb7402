"""A rank without an engine, for tests of the control plane: it fails when told to."""

import os
import time
from collections.abc import Mapping
from typing import Any

import msgpack  # type: ignore[import-untyped]

from hccl_py.transport.control.reporter import Absence


class FakeEngine:
    """What `Reporter` asks for; the diagnosis says who judged, on whose reports."""

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.gone: list[tuple[int, bool, int]] = []
        self.fails = False
        self.window_s: float | None = None
        self.adopted: dict[str, Any] | None = None
        self.adopted_s = 0.0
        self._first: bytes | None = None
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fail(self) -> None:
        self.fails = True
        os.eventfd_write(self._fd, 1)

    def news_fd(self) -> int:
        return self._fd

    def ended_ranks(self) -> list[tuple[int, bool, int]]:
        return self.gone

    def suspects(self) -> bool:
        return False

    def has_failure(self) -> bool:
        return self.fails

    def report(self) -> tuple[bytes, float | None]:
        return b"a report", self.window_s

    def diagnosis(self) -> bytes | None:
        return None if self.adopted is None else self._first

    def adopt(self, diagnosis: bytes) -> None:
        self._first = self._first or diagnosis

    def conclude(self, diagnosis: bytes) -> None:
        self.adopt(diagnosis)
        if self.adopted is None:
            self.adopted_s = time.monotonic()
        # The first one stays, as in the engine.
        self.adopted = msgpack.unpackb(self._first, strict_map_key=False)

    def diagnose(self, reports: Mapping[int, bytes], absent: Mapping[int, Absence]) -> bytes:
        text = {rank: one.text for rank, one in absent.items()}
        diagnosis = {"judge": self.rank, "reports": sorted(reports), "absent": text}
        return bytes(msgpack.packb(diagnosis))

    def close(self) -> None:
        os.close(self._fd)
