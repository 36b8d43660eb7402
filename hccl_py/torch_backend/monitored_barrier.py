"""A barrier in the group's store, which names the ranks that did not come."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

ANSWER_S = 10.0
"""How much longer than its own timeout a rank waits for rank 0's answer, which may wait as long."""


def meet(store: Any, rank: int, world_size: int, timeout_s: float, wait_all_ranks: bool) -> None:
    """Block until every rank came to `store`, which is of this barrier alone.

    Rank 0 raises at once where `timeout_s` is 0 or less.
    """
    store.set(str(rank), "here")
    if rank == 0:
        deadline = time.monotonic() + timeout_s
        missing: list[str] = []
        for other in map(str, range(1, world_size)):
            # Torch's stores would wait without a limit for 0; as with gloo, no rank has come then.
            if timeout_s <= 0 or not _comes(store, other, deadline - time.monotonic()):
                missing.append(other)
                if not wait_all_ranks:
                    break
        store.set("missing", ", ".join(missing))
    elif not _comes(store, "missing", timeout_s + ANSWER_S):
        raise _failed(rank, timeout_s + ANSWER_S, "0", ", or lost the store")
    named = store.get("missing").decode()
    if named:
        raise _failed(rank, timeout_s, named)


def _failed(rank: int, elapsed_s: float, ranks: str, more: str = "") -> Exception:
    return dist.DistBackendError(
        f"monitored_barrier on rank {rank}: Timed out after {elapsed_s:g} s; "
        f"rank(s) {ranks} did not come{more}"
    )


def _comes(store: Any, key: str, timeout_s: float) -> bool:
    try:
        store.wait([key], timedelta(seconds=max(timeout_s, 0.001)))
    except RuntimeError as error:  # a FileStore's timeout has no type of its own
        if "timeout" not in str(error).lower():
            raise
        return False
    return True
