"""Times only the data movement of a collective: no messages, and no rank waits for another.

Each rank does its share of the copies and sums, all ranks at once, in memory that all of them map.
No data is copied twice, and sums are made tile by tile.

- all_gather: a rank reads each other rank's block; all_to_all: its own block out of each other
  rank's memory.
- broadcast: the root writes one block to each other rank, which reads the others.
- reduce_scatter: a rank adds up its block of all ranks.
- reduce, all_reduce: the same, then it writes the sum into the memory of the root, or of all ranks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.peers.library import ROOT, Array, Call, Library, open_communicator

_TILE = 32768
"""Elements that are summed at a time; they stay in a core's cache until they are written."""


def open_copies() -> Library:
    """Open the copies; a Communicator synchronizes the ranks while they map memory."""
    within = open_communicator()
    count = itertools.count()

    def zeros(num_elements: int) -> Array:
        # All ranks make the same buffers in the same order, so equal numbers belong together.
        name = f"/dev/shm/hccl-copies-{os.environ['MASTER_PORT']}-{next(count)}.{within.rank}"
        return np.memmap(name, np.float32, "w+", shape=num_elements)

    return within._replace(zeros=zeros, bind=partial(_bind, within), settle=within.barrier)


def _of_all(within: Library, mine: Array) -> list[Array]:
    """Map the same buffer of every rank, and remove its file."""
    assert isinstance(mine, np.memmap)
    path = Path(str(mine.filename))
    within.barrier()
    names = (path.with_suffix(f".{rank}") for rank in range(within.world_size))
    every: list[Array] = [np.memmap(name, np.float32, "r+") for name in names]
    within.barrier()
    path.unlink()
    return every


def _bind(within: Library, op: str, input: Array, output: Array) -> Call:
    n, rank = within.world_size, within.rank
    inputs = _of_all(within, input)
    outputs = inputs if output is input else _of_all(within, output)
    others = [(rank + step) % n for step in range(1, n)]
    # The block of each rank in the larger buffer.
    larger = max(input.size, output.size)
    blocks = [slice(larger * i // n, larger * (i + 1) // n) for i in range(n)]
    mine = blocks[rank]

    def sums(into: Array, targets: list[int]) -> Iterator[Call]:
        for begin in range(0, into.size, _TILE):
            tile = into[begin : begin + _TILE]
            at = slice(mine.start + begin, mine.start + begin + tile.size)
            own = input[at]
            for peer in others:
                yield partial(np.add, own, inputs[peer][at], out=tile)
                own = tile
            for peer in targets:
                yield partial(np.copyto, outputs[peer][at], tile)

    def steps() -> Iterator[Call]:
        if op == "broadcast":
            for peer in others if rank == ROOT else ():
                yield partial(np.copyto, inputs[peer][blocks[peer]], input[blocks[peer]])
            for part in (slice(0, mine.start), slice(mine.stop, None)) if rank != ROOT else ():
                yield partial(np.copyto, input[part], inputs[ROOT][part])
        elif op == "all_gather":
            for peer in (rank, *others):
                yield partial(np.copyto, output[blocks[peer]], inputs[peer])
        elif op == "all_to_all":
            for peer in (rank, *others):
                yield partial(np.copyto, output[blocks[peer]], inputs[peer][mine])
        elif op == "reduce_scatter":
            yield from sums(output, [])
        elif op == "reduce":
            is_root = rank == ROOT
            into = output[mine] if is_root else np.empty(mine.stop - mine.start, np.float32)
            yield from sums(into, [] if is_root else [ROOT])
        else:
            yield from sums(output[mine], others)

    todo = list(steps())

    def call() -> None:
        for step in todo:
            step()

    return call
