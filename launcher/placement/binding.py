"""Splits this machine's cores among its ranks, and binds a process to its part.

`--bind` is `none` unless the user asks. Open MPI binds by default, torchrun does not:

- Each job binds from the first core on, without knowledge of other jobs. Two jobs on one machine
  then share some cores and leave others idle. Unbound ranks are spread by the scheduler.
- A rank that drives an accelerator belongs near it, at a place that the launcher does not know.
- The processes that a rank starts, such as workers of a DataLoader, stay on its cores.

Memory is not bound. The kernel takes a page from the NUMA node of the thread that first writes to
it, so a bound rank has its memory near, unless that node is full.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import groupby
from typing import NamedTuple

from hccl_py.launcher.number_ranges import ranges
from hccl_py.launcher.placement.topology import Cpu, Machine
from hccl_py.transport.network.system_calls import usable_cores

Core = tuple[Cpu, ...]


class Bind(Enum):
    """The unit that a rank is bound to; values of the option."""

    NONE = "none"
    CORE = "core"
    NUMA = "numa"


class Place(NamedTuple):
    """The CPUs of a rank."""

    cpus: tuple[int, ...]
    numas: tuple[int, ...]  # NUMA nodes of these CPUs
    num_threads: int  # threads that keep its share of the cores busy
    is_bound: bool

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return missing variables of the rank; a number of threads set by the user stays."""
        name = "OMP_NUM_THREADS"
        return {} if name in environ else {name: str(self.num_threads)}


class Placement(NamedTuple):
    """A place for each local rank, and a note for the user if they differ from the request."""

    places: tuple[Place, ...]
    note: str = ""


def place(machine: Machine, num_ranks: int, bind: Bind) -> Placement:
    """Split the cores of a machine among its ranks; neighbouring ranks get neighbouring cores.

    - `CORE`: each rank gets whole cores of its own; numbers differ by at most one. Of these splits,
      the one with the fewest ranks across NUMA nodes, then caches, is chosen. With more ranks than
      cores no rank is bound, as in Open MPI: the scheduler moves ranks to idle cores, but two ranks
      bound to one core would wait for each other.
    - `NUMA`: each rank gets all cores of its NUMA node, or of several nodes if there are fewer
      ranks. A node with more cores gets more ranks.
    - `NONE`: all ranks share all cores.

    A quota of CPU time limits the threads, not the cores: the time may be spent on any core, and
    containers that all took the first cores would share them.
    """
    cores = machine.cores
    note = ""
    if bind is Bind.CORE and num_ranks > len(cores):
        shared = ranges((cpu.number for cpu in machine.cpus), ",")
        note = f"--bind core: {num_ranks} ranks on {len(cores)} cores; they share CPUs {shared}"
        bind = Bind.NONE
    split = {Bind.NONE: _share, Bind.CORE: _split_cores, Bind.NUMA: _split_numas}[bind]
    parts = split(cores, num_ranks)
    # Ranks on the same cores have equal shares of them.
    shares = [len(part) / parts.count(part) for part in parts]
    if machine.quota is not None:
        shares = [min(share, machine.quota / num_ranks) for share in shares]
    places = [
        Place(
            cpus=tuple(sorted(cpu.number for core in part for cpu in core)),
            numas=tuple(sorted({core[0].numa for core in part})),
            num_threads=max(1, int(share)),
            is_bound=bind is not Bind.NONE,
        )
        for part, share in zip(parts, shares, strict=True)
    ]
    return Placement(tuple(places), note)


@contextmanager
def bound_to(place: Place) -> Iterator[None]:
    """Bind processes that this thread starts in the block to the CPUs of a place.

    A process inherits the CPUs of the thread that starts it, so every thread of the rank has them.
    """
    if not place.is_bound:
        yield
        return
    before = usable_cores()
    try:
        os.sched_setaffinity(0, place.cpus)
    except OSError as error:
        raise OSError(error.errno, error.strerror, "--bind (sched_setaffinity)") from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _share(cores: Sequence[Core], num_ranks: int) -> list[Sequence[Core]]:
    return [cores] * num_ranks


def _split_cores(cores: Sequence[Core], num_ranks: int) -> list[Sequence[Core]]:
    """Cut the cores into runs whose lengths differ by at most one, with the fewest borders."""
    fewest, num_longer = divmod(len(cores), num_ranks)
    # The best lengths so far, by the number of longer ones, with the borders they cross.
    best: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {0: ((0, 0), ())}
    for rank in range(num_ranks):
        following: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for before, (crossed, lengths) in best.items():
            begin = rank * fewest + before
            for longer in (before + 1, before):
                if not num_longer - (num_ranks - rank - 1) <= longer <= num_longer:
                    continue
                length = fewest + longer - before
                numas, caches = _borders(cores[begin : begin + length])
                cost = crossed[0] + numas, crossed[1] + caches
                if longer not in following or cost < following[longer][0]:
                    following[longer] = cost, (*lengths, length)
        best = following
    ends = [0]
    for length in best[num_longer][1]:
        ends.append(ends[-1] + length)
    return [cores[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


def _borders(cores: Sequence[Core]) -> tuple[int, int]:
    """Return the borders of NUMA nodes and those of caches between some neighbouring cores."""
    numas = {core[0].numa for core in cores}
    return len(numas), len({(core[0].numa, core[0].cache) for core in cores})


def _split_numas(cores: Sequence[Core], num_ranks: int) -> list[Sequence[Core]]:
    numas = [tuple(part) for _, part in groupby(cores, lambda core: core[0].numa)]
    if num_ranks <= len(numas):
        ends = [rank * len(numas) // num_ranks for rank in range(num_ranks + 1)]
        return [sum(numas[a:b], ()) for a, b in zip(ends, ends[1:], strict=False)]
    by_core = [part for part in numas for _ in part]
    # The core in the middle of a rank's share, for equal shares.
    return [by_core[(2 * rank + 1) * len(cores) // (2 * num_ranks)] for rank in range(num_ranks)]
