"""The four kinds of op, and the plan: an immutable row of them for one rank."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from hccl_py.plan.chunks import BufferName, Chunk


class OpKind(IntEnum):
    """What an op does, with the numbers that the engine uses."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    COPY = 3


class Op(NamedTuple):
    """One step of a rank. A send has `src`, a receive has `dst`, a copy has both and no peers."""

    kind: OpKind
    peers: tuple[int, ...] = ()
    dst: Chunk | None = None
    src: Chunk | None = None

    def __str__(self) -> str:
        """Say the op in words."""
        peers = " ".join(map(str, self.peers))
        if self.kind is OpKind.SEND:
            return f"send {self.src} to {peers}"
        if self.kind is OpKind.COPY:
            return f"copy {self.src} to {self.dst}"
        return f"{self.kind.name.lower()} {self.dst} from {peers}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Into how many chunks (`data`) or blocks (`input`, `output`) a rank's buffers are cut."""

    data_chunks: int = 0
    input_blocks: int = 0
    output_blocks: int = 0

    def parts(self, buffer: BufferName) -> int:
        """Return the number of chunks or blocks of `buffer`."""
        if buffer is BufferName.DATA:
            return self.data_chunks
        return self.input_blocks if buffer is BufferName.INPUT else self.output_blocks


@dataclass(frozen=True, slots=True)
class Plan:
    """What one rank does in one collective: ops in order, no bytes, no dtype, no reduce op.

    Attributes:
        collective: name, e.g. `all_reduce`.
        algorithm: name, e.g. `mesh`.
        rank: whose plan this is.
        world_size: number of ranks.
        root: the root of a rooted collective, else None.
        shape: how this rank's buffers are cut.
        ops: run in order; each blocks until it is done, but a send completes in the background.
    """

    collective: str
    algorithm: str
    rank: int
    world_size: int
    root: int | None
    shape: Shape
    ops: tuple[Op, ...] = ()
