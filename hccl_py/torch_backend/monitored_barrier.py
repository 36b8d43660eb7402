"""A barrier in the group's store, which names the ranks that did not come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from typing import Any

import torch.distributed as dist

ANSWER_S = 10.0
"""How much longer than its own timeout a rank waits for rank 0's answer, which may wait as long."""


class MonitoredBarrier:
    """The monitored barriers of one group."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """Meet in `store`."""
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._number = 0

    def wait(self, timeout_s: float, wait_all_ranks: bool) -> None:
        """Block until every rank came; rank 0 raises at once where `timeout_s` is 0 or less."""
        self._number += 1
        key = f"monitored_barrier/{self._number}"
        self._store.set(f"{key}/{self._rank}", "here")
        if self._rank == 0:
            missing = islice(self._missing_ranks(key, timeout_s), None if wait_all_ranks else 1)
            self._store.set(key, ", ".join(missing))
        elif not self._comes(key, timeout_s + ANSWER_S):
            raise self._failed(timeout_s + ANSWER_S, "0", ", or lost the store")
        named = self._store.get(key).decode()
        if named:
            raise self._failed(timeout_s, named)

    def _missing_ranks(self, key: str, timeout_s: float) -> Iterator[str]:
        # Torch's stores would wait without a limit for 0; as with gloo, no rank has come then.
        deadline = time.monotonic() + timeout_s
        for rank in range(1, self._world_size):
            here = timeout_s > 0 and self._comes(f"{key}/{rank}", deadline - time.monotonic())
            if not here:
                yield str(rank)

    def _failed(self, elapsed_s: float, ranks: str, more: str = "") -> Exception:
        return dist.DistBackendError(
            f"monitored_barrier on rank {self._rank}: Timed out after {elapsed_s:g} s; "
            f"rank(s) {ranks} did not come{more}"
        )

    def _comes(self, key: str, timeout_s: float) -> bool:
        """Wait until `key` is in the store; return whether it came in time."""
        try:
            self._store.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
        except RuntimeError as error:  # a FileStore's timeout has no type of its own
            if "timeout" not in str(error).lower():
                raise
            return False
        return True
