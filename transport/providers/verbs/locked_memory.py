"""How much memory a rank registers, and may register."""

from __future__ import annotations

import os
import resource

LOCKED_BYTES_PER_PEER = 9_500_000
"""What a rank locks for each rank of another node: slots, half of which are registered twice."""


def locked_bytes() -> int | None:
    """Return how much memory this process may lock; None: all, root may."""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if locked == resource.RLIM_INFINITY or os.geteuid() == 0 else locked
