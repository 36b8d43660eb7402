"""One rank of one fresh start: imports, waits for all others, connects, and calls two collectives.

Moments are of `time.monotonic`, which all processes of a machine share.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.footprint import num_descriptors
from benchmarks.peers.library import Library, open_communicator
from benchmarks.peers.program import LIBRARIES

COMMUNICATOR = "communicator"
CONTENDERS = (COMMUNICATOR, *(name for name in LIBRARIES if name.startswith("torch ")))

BEFORE, CONNECTED, ALL_REDUCE, ALL_TO_ALL = "before", "connected", "all_reduce", "all_to_all"
MOMENTS = (BEFORE, CONNECTED, ALL_REDUCE, ALL_TO_ALL)

_STILL_S = 0.2
_SETTLING_S = 5.0


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Attributes:
        contender: one of `CONTENDERS`.
        environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and HCCL_NODE_ID.
        unique_id: where a communicator meets.
    """

    contender: str
    environment: dict[str, str]
    unique_id: bytes


@dataclass(frozen=True)
class Reading:
    """What a rank has at one moment.

    Attributes:
        began_s: when this rank began the step before it; of the first moment, as `at_s`.
        at_s: when that step was done.
        descriptors: open in this process soon after.
        memory_mib: its share of memory, with what it shares divided by its sharers (PSS).
    """

    began_s: float
    at_s: float
    descriptors: int
    memory_mib: float


def run(pipe: Connection, assignment: Assignment) -> None:
    """Send a reading when all imports are done, and one after each step that a message lets go.

    A rank that went on by itself would dial another that has still to read what it has.
    """
    os.environ.update(assignment.environment)
    for module in ("hccl_py.communicator", "torch.distributed"):
        if not module.startswith("torch") or assignment.contender != COMMUNICATOR:
            import_module(module)
    pipe.send(_read(time.monotonic()))
    began_s = _wait(pipe)
    library = _open(assignment)
    pipe.send(_read(began_s))
    for op in (ALL_REDUCE, ALL_TO_ALL):
        data = np.zeros(library.world_size, np.float32)
        call = library.bind(op, data, data if op == ALL_REDUCE else data.copy())
        began_s = _wait(pipe)
        call()
        pipe.send(_read(began_s))
    _wait(pipe)  # nobody leaves while another is still at work
    library.close()


def _wait(pipe: Connection) -> float:
    pipe.recv()
    return time.monotonic()


def _open(assignment: Assignment) -> Library:
    if assignment.contender != COMMUNICATOR:
        return LIBRARIES[assignment.contender]()
    rank, world_size = (int(assignment.environment[name]) for name in ("RANK", "WORLD_SIZE"))
    return open_communicator(assignment.unique_id, rank, world_size)


def _read(began_s: float) -> Reading:
    at_s = time.monotonic()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return Reading(began_s, at_s, _settled_descriptors(), int(line.split()[1]) / 1024)
    raise OSError("/proc/self/smaps_rollup: expected a line Pss, got none")


def _settled_descriptors() -> int:
    """Return how many are open once none has come or gone for a while.

    What connecting needed is closed by other threads, which may come later than the call's return.
    """
    give_up_s = time.monotonic() + _SETTLING_S
    last_change_s, number = time.monotonic(), num_descriptors()
    while time.monotonic() < min(last_change_s + _STILL_S, give_up_s):
        time.sleep(_STILL_S / 10)
        if (found := num_descriptors()) != number:
            last_change_s, number = time.monotonic(), found
    return number
