"""A rank of a fresh start: it imports, connects, and calls two collectives, on request.

Times are of `time.monotonic`, which all processes of a machine share.
"""

import os
import time
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.peers.library import Library, of_communicator, open_torch
from hccl_py import Communicator
from hccl_py.bench.collective.rank import Rank

COMMUNICATOR = "communicator"
CONTENDERS = (COMMUNICATOR, "torch hccl", "torch gloo")

_TIMEOUT_S = 120.0
_STILL_S = 0.2
_SETTLING_S = 5.0


class Reading(NamedTuple):
    """A rank's resources after a step."""

    began_s: float  # when this rank began the step
    at_s: float  # when it was done
    fds: int  # open descriptors of this process soon after
    threads: int  # of this process
    mib: float  # memory of this process; shared memory is divided by its users (PSS)


class _Opened:
    """The connections of this process."""

    library: Library
    communicator: Communicator
    subgroups: tuple[Communicator, ...] = ()


def imports(rank: Rank, contender: str) -> Reading:
    """Import the modules of a contender."""
    began_s = time.monotonic()
    for module in ("communicator", "torch"):
        if module == "communicator" or contender != COMMUNICATOR:
            import_module(f"hccl_py.bench.collective.over_{module}")
    return _read(began_s)


def connect(rank: Rank, contender: str, world_size: int, unique_id: bytes, port: int) -> Reading:
    """Connect with the other ranks."""
    began_s = time.monotonic()
    if contender == COMMUNICATOR:
        joined = Communicator(unique_id, rank.rank, world_size, timeout_s=_TIMEOUT_S)
        _Opened.communicator, _Opened.library = joined, of_communicator(joined)
    else:
        os.environ["MASTER_PORT"] = str(port)
        _Opened.library = open_torch(contender.partition(" ")[2])
    return _read(began_s)


def call(rank: Rank, op: str) -> Reading:
    """Call a collective for the first time, with 4 bytes for each rank."""
    data = np.zeros(_Opened.library.world_size, np.float32)
    bound = _Opened.library.bind(op, data, data if op == "all_reduce" else data.copy())
    began_s = time.monotonic()
    bound()
    return _read(began_s)


def split(rank: Rank, subgroups: int) -> Reading:
    """Make so many subcommunicators of all ranks."""
    began_s, everyone = time.monotonic(), range(_Opened.library.world_size)
    names = (f"subgroup-{number}" for number in range(subgroups))
    _Opened.subgroups = tuple(_Opened.communicator.subset(everyone, name) for name in names)
    return _read(began_s)


def close(rank: Rank) -> None:
    """Close all communicators."""
    for subgroup in _Opened.subgroups:
        subgroup.close()
    _Opened.library.close()


def _read(began_s: float) -> Reading:
    at_s = time.monotonic()
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    pss_kib = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    threads = len(os.listdir("/proc/self/task"))
    return Reading(began_s, at_s, _settled_descriptors(), threads, pss_kib / 1024)


def _settled_descriptors() -> int:
    """Return the number of open descriptors once it has not changed for a while.

    Other threads close the descriptors that only connecting needed, maybe after the call's return.
    """
    give_up_s = time.monotonic() + _SETTLING_S
    last_change_s, number = time.monotonic(), len(os.listdir("/proc/self/fd"))
    while time.monotonic() < min(last_change_s + _STILL_S, give_up_s):
        time.sleep(_STILL_S / 10)
        if (found := len(os.listdir("/proc/self/fd"))) != number:
            last_change_s, number = time.monotonic(), found
    return number
