"""Threads and descriptors of one rank: `python -m benchmarks.footprint`.

Starts 2 emulated nodes of 4 ranks, makes subgroups of all ranks with `Communicator.subset`, and
prints the table for rank 7. Threads by name show which mechanism they belong to.
"""

import multiprocessing
import os
import tempfile
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.harness import parser_of_command

_NODES, _RANKS_PER_NODE = 2, 4
_WORLD_SIZE = _NODES * _RANKS_PER_NODE
_STEPS = (0, 1, 50)
_TIMEOUT_S = 300.0


def main() -> None:
    """Start the ranks and print what rank 7 counted."""
    parser_of_command("benchmarks.footprint", __doc__ or "").read()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        rows, sender = context.Pipe(duplex=False)
        ranks = [
            context.Process(target=_rank, args=(rank, f"{folder}/store", sender))
            for rank in range(_WORLD_SIZE)
        ]
        for rank in ranks:
            rank.start()
        print(f"{_NODES} x {_RANKS_PER_NODE} ranks; subgroups of all ranks")
        print(f"{'subgroups':>9}  {'threads':>7}  {'descriptors':>11}  threads of the library")
        for _ in _STEPS:
            if not rows.poll(_TIMEOUT_S):
                raise TimeoutError(f"no row from rank {_WORLD_SIZE - 1} in {_TIMEOUT_S:g} s")
            num_subgroups, num_threads, num_open, names = rows.recv()
            print(f"{num_subgroups:9}  {num_threads:7}  {num_open:11}  {names}", flush=True)
        for rank in ranks:
            rank.join(_TIMEOUT_S)


def _rank(rank: int, store_path: str, sender: Connection) -> None:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    from hccl_py import Communicator

    os.environ["HCCL_NODE_ID"] = str(rank // _RANKS_PER_NODE)
    threads, descriptors = _threads(), num_descriptors()
    store = FileStore(store_path, _WORLD_SIZE)
    world = Communicator(store, rank, _WORLD_SIZE, timeout_s=_TIMEOUT_S)
    subgroups: list[Communicator] = []
    for num_subgroups in _STEPS:
        while len(subgroups) < num_subgroups:
            subgroups.append(world.subset(range(_WORLD_SIZE), f"subgroup-{len(subgroups)}"))
        world.barrier()
        if rank == _WORLD_SIZE - 1:
            new = _threads() - threads
            names = ", ".join(f"{count} {name}" for name, count in sorted(new.items()))
            sender.send((num_subgroups, new.total(), num_descriptors() - descriptors, names))
        world.barrier()
    for subgroup in subgroups:
        subgroup.close()
    world.close()


def _threads() -> Counter[str]:
    return Counter(task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm"))


def num_descriptors() -> int:
    """Count what this process has open."""
    return len(os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main()
