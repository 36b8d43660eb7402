"""What torch.hpu measures and does, on a CPU: the process's memory, the wall clock, no streams."""

from __future__ import annotations

import os
import resource
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

_PAGE = os.sysconf("SC_PAGE_SIZE")


def memory_allocated(_: Any = None) -> int:
    """Return the process's resident memory in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE


def max_memory_allocated(_: Any = None) -> int:
    """Return the most resident memory of the process so far, in bytes."""
    return max(memory_allocated(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def mem_get_info(_: Any = None) -> tuple[int, int]:
    """Return the free and the whole memory of this machine in bytes."""
    return os.sysconf("SC_AVPHYS_PAGES") * _PAGE, os.sysconf("SC_PHYS_PAGES") * _PAGE


def memory_stats(_: Any = None) -> dict[str, int]:
    """Return the sizes that a Gaudi reports, in bytes; zero for its allocator's counts."""
    counts = ("NumAllocs", "NumFrees", "ActiveAllocs", "MaxAllocSize", "TotalSystemAllocs")
    sizes = {"InUse": memory_allocated(), "MaxInUse": max_memory_allocated()}
    zeros = dict.fromkeys((*counts, "TotalSystemFrees", "TotalActiveAllocs"), 0)
    return {"Limit": mem_get_info()[1], **sizes, **zeros}


def memory_summary(*_: Any, **__: Any) -> str:
    """Return the statistics as lines."""
    return "\n".join(f"{name} {value}" for name, value in memory_stats().items())


def get_device_properties(_: Any = None) -> SimpleNamespace:
    """Return name and memory of the device."""
    return SimpleNamespace(name="CPU", total_memory=mem_get_info()[1])


class Event:
    """A point in time. All work before it is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the arguments of a Gaudi's event."""
        self._at_s = 0.0

    def record(self, *_: Any) -> None:
        """Note the time."""
        self._at_s = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between this event and `end`."""
        return (end._at_s - self._at_s) * 1e3

    def query(self) -> bool:
        """Return True: the work before is done."""
        return True

    def wait(self, *_: Any) -> None:
        """Return at once."""

    synchronize = wait


class Stream:
    """An order of work. A CPU's is that of the program."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the arguments of a Gaudi's stream."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = event or Event()
        event.record()
        return event

    def query(self) -> bool:
        """Return True: the work is done."""
        return True

    def synchronize(self, *_: Any) -> None:
        """Return at once."""

    wait_stream = wait_event = synchronize


_stream = Stream()


def current_stream(*_: Any) -> Stream:
    """Return the only stream."""
    return _stream


def stream(given: Any = None, *_: Any, **__: Any) -> Any:
    """Return a context in which nothing changes."""
    return nullcontext(given)


def get_rng_state(_: Any = None) -> torch.Tensor:
    """Return the state of torch's generator."""
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, _: Any = None) -> None:
    """Set the state of torch's generator."""
    torch.set_rng_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the state of the only device."""
    return [torch.get_rng_state()]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Set the state of the only device."""
    torch.set_rng_state(states[0])


def is_autocast_hpu_enabled() -> bool:
    """Return whether the CPU's autocast is on."""
    return torch.is_autocast_enabled("cpu")


def get_autocast_hpu_dtype() -> torch.dtype:
    """Return the type of the CPU's autocast."""
    return torch.get_autocast_dtype("cpu")
