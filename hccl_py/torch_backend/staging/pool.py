"""Pinned host memory for staged tensors, kept for the next call.

Pinning a buffer takes as long as sending it, so calls return their buffers here. Sizes are rounded
up to classes, four to a power of two, so that a buffer fits tensors of similar sizes.
"""

import threading

import torch
from torch import Tensor

SMALLEST_BYTES = 4096
IDLE_BYTES = 256 << 20
"""Bytes that a process keeps pinned while no call uses them."""


def class_bytes(num_bytes: int) -> int:
    """Return the size of the buffer that serves `num_bytes`: at most a quarter larger."""
    if num_bytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    step = 1 << max((num_bytes - 1).bit_length() - 3, 0)
    return -(-num_bytes // step) * step


class PinnedPool:
    """Buffers of host memory that a device can copy to and from."""

    def __init__(self, idle_bytes: int = IDLE_BYTES, pinned: bool = True) -> None:
        """Keep at most `idle_bytes` of returned buffers; not `pinned`: without a device."""
        self._limit_bytes = idle_bytes
        self._pinned = pinned
        self._lock = threading.Lock()
        self._idle: dict[int, list[tuple[Tensor, torch.Event | None]]] = {}
        self.idle_bytes = 0

    def take(self, num_bytes: int) -> Tensor:
        """Return a buffer of at least `num_bytes` that no call uses and no device writes to."""
        size = class_bytes(num_bytes)
        with self._lock:
            idle = self._idle.get(size, [])
            for index, (buffer, used) in enumerate(idle):
                if used is None or used.query():
                    del idle[index]
                    self.idle_bytes -= size
                    return buffer
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)

    def give(self, buffer: Tensor, used: torch.Event | None) -> None:
        """Take a buffer back that the device uses until the event `used`; None: no longer."""
        size = buffer.numel()
        with self._lock:
            if self.idle_bytes + size <= self._limit_bytes:
                self._idle.setdefault(size, []).append((buffer, used))
                self.idle_bytes += size
                return
        if used is not None:
            used.synchronize()  # not every backend keeps the memory during a copy


POOL = PinnedPool()
"""The pool of this process."""
