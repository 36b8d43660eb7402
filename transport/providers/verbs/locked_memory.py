"""The amount of memory that a rank registers, and may register."""

import os
import resource

_ONE_DEVICE_BYTES = 4_750_000
_EACH_DEVICE_BYTES = 6_330_000
"""A lane over several devices has more slots, see `csrc/verbs/lane/lane_slots.h`."""


def locked_bytes_per_peer(num_devices: int = 1) -> int:
    """Return the bytes that a rank locks per rank of another node: the slots of its lanes.

    From 33 ranks on it is half of that, and a quarter from 129 on: slots are smaller.
    """
    return _ONE_DEVICE_BYTES if num_devices == 1 else num_devices * _EACH_DEVICE_BYTES


def locked_bytes() -> int | None:
    """Return how much memory this process may lock; None: no limit, as for root."""
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if locked == resource.RLIM_INFINITY or os.geteuid() == 0 else locked
