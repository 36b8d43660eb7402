"""What a process holds: threads, descriptors, mappings with a name, files, child processes.

    before = holdings(folder)
    ...
    assert not wait_for_return(before, folder)

Anonymous memory is left out: what malloc and the threads' stacks keep for later is no leak.
"""

import contextlib
import gc
import os
import re
import time
from collections import Counter
from pathlib import Path

from quiet_clock import over_after

Holdings = Counter[str]
"""How many there are of each, e.g. `descriptor socket`, `mapping memfd:hccl-arena`."""

RETURN_S = 2.0
"""What ends in the background may take so many quiet seconds: threads, and what they hold."""


def holdings(folder: str | Path | None = None) -> Holdings:
    """Count what this process holds now; its temporary files would lie in `folder`."""
    files = Path(folder).rglob("*") if folder is not None else ()
    # Other programs have files in /dev/shm, too.
    paths = [f"file {path}" for path in (*files, *Path("/dev/shm").glob("*hccl*"))]
    return Counter([*_threads(), *_descriptors(), *_mappings(), *paths, *_children()])


def settled_holdings(folder: str | Path | None = None) -> Holdings:
    """Count once nothing has changed for a moment: what ends in the background has ended."""
    gc.collect()
    is_over = over_after(RETURN_S)
    before, now = None, holdings(folder)
    while before != now and not is_over():
        time.sleep(0.02)
        before, now = now, holdings(folder)
    return now


def wait_for_return(before: Holdings, folder: str | Path | None = None) -> list[str]:
    """Wait until nothing is left that was not there before; say what still is after the time."""
    gc.collect()
    is_over = over_after(RETURN_S)
    while left := holdings(folder) - before:
        if is_over():
            return [f"{count} x {what}" for what, count in sorted(left.items())]
        time.sleep(0.005)
    return []


def _threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            names.append(f"thread {(task / 'comm').read_text().strip()}")
    return names


def _descriptors() -> list[str]:
    kinds = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            kinds.append(f"descriptor {re.sub(r':.*[0-9]+.*', '', target)}")
    return kinds


def _mappings() -> list[str]:
    named = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        # Of a library pages may be one mapping or two, and it stays once it was loaded.
        if len(fields) == 6 and fields[5][0] != "[" and ".so" not in fields[5]:
            named.append(f"mapping {fields[5]}")
    return named


def _children() -> list[str]:
    children: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            children += (task / "children").read_text().split()
    return [f"child process {child}" for child in children]
