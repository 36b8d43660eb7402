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

from benchmarks.peers.library import Library, of_communicator, open_torch
from hccl_py import Communicator

COMMUNICATOR = "communicator"
CONTENDERS = (COMMUNICATOR, "torch hccl", "torch gloo")

BEFORE, CONNECTED, ALL_REDUCE, ALL_TO_ALL = "before", "connected", "all_reduce", "all_to_all"
SUBGROUPS = "subgroups"
MOMENTS = (BEFORE, CONNECTED, ALL_REDUCE, ALL_TO_ALL)

_TIMEOUT_S = 120.0
_STILL_S = 0.2
_SETTLING_S = 5.0


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do.

    Attributes:
        contender: one of `CONTENDERS`.
        environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and HCCL_NODE_ID.
        unique_id: of the communicator.
        subgroups: how many subcommunicators of all ranks a communicator makes at the end.
    """

    contender: str
    environment: dict[str, str]
    unique_id: bytes
    subgroups: int


@dataclass(frozen=True)
class Reading:
    """What a rank has at one moment.

    Attributes:
        began_s: when this rank began the step before it; of the first moment, as `at_s`.
        at_s: when that step was done.
        fds: descriptors, open in this process soon after.
        threads: of this process.
        mib: its share of memory, with what it shares divided by its sharers (PSS).
    """

    began_s: float
    at_s: float
    fds: int
    threads: int
    mib: float


def run(pipe: Connection, assignment: Assignment) -> None:
    """Send a reading when all imports are done, and one after each step that a message lets go.

    A rank that went on by itself would dial another that has still to read what it has.
    """
    os.environ.update(assignment.environment)
    for module in ("communicator", "torch"):
        if module == "communicator" or assignment.contender != COMMUNICATOR:
            import_module(f"hccl_py.bench.collective.over_{module}")
    pipe.send(_read(time.monotonic()))
    began_s = _wait(pipe)
    library, communicator = _open(assignment)
    pipe.send(_read(began_s))
    for op in (ALL_REDUCE, ALL_TO_ALL):
        data = np.zeros(library.world_size, np.float32)
        call = library.bind(op, data, data if op == ALL_REDUCE else data.copy())
        began_s = _wait(pipe)
        call()
        pipe.send(_read(began_s))
    kept = []
    if assignment.subgroups and communicator is not None:
        began_s = _wait(pipe)
        names = (f"subgroup-{number}" for number in range(assignment.subgroups))
        kept = [communicator.subset(range(library.world_size), name) for name in names]
        pipe.send(_read(began_s))
    _wait(pipe)  # nobody leaves while another is still at work
    for subgroup in kept:
        subgroup.close()
    library.close()


def _wait(pipe: Connection) -> float:
    pipe.recv()
    return time.monotonic()


def _open(assignment: Assignment) -> tuple[Library, Communicator | None]:
    if assignment.contender != COMMUNICATOR:
        return open_torch(assignment.contender.partition(" ")[2]), None
    rank, world_size = (int(assignment.environment[name]) for name in ("RANK", "WORLD_SIZE"))
    communicator = Communicator(assignment.unique_id, rank, world_size, timeout_s=_TIMEOUT_S)
    return of_communicator(communicator), communicator


def _read(began_s: float) -> Reading:
    at_s = time.monotonic()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss_kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    threads = len(os.listdir("/proc/self/task"))
    return Reading(began_s, at_s, _settled_descriptors(), threads, pss_kib / 1024)


def _settled_descriptors() -> int:
    """Return how many are open once none has come or gone for a while.

    What connecting needed is closed by other threads, which may come later than the call's return.
    """
    give_up_s = time.monotonic() + _SETTLING_S
    last_change_s, number = time.monotonic(), len(os.listdir("/proc/self/fd"))
    while time.monotonic() < min(last_change_s + _STILL_S, give_up_s):
        time.sleep(_STILL_S / 10)
        if (found := len(os.listdir("/proc/self/fd"))) != number:
            last_change_s, number = time.monotonic(), found
    return number
