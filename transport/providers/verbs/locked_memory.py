"""How much memory a rank registers, and may register."""

from __future__ import annotations

import os
import resource

LOCKED_BYTES_PER_PEER = 6_400_000
"""What a rank locks for each rank of another node and device: the slots of its lanes. It is half of
that from 33 ranks on, and a quarter from 129 on, whose slots are smaller."""


def locked_bytes() -> int | None:
    """Return how much memory this process may lock; None: all, root may."""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if locked == resource.RLIM_INFINITY or os.geteuid() == 0 else locked
