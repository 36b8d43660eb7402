"""What a collective is: who holds what before it, and what it promises afterwards.

Only the vocabulary lives here; the collectives themselves are in `hccl_py/plan/contracts.py`.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from hccl_py.plan.chunks import BufferName
from hccl_py.plan.ops import Shape


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank's place in a collective."""

    rank: int
    world_size: int
    root: int | None = None


@dataclass(frozen=True, slots=True)
class Contribution:
    """Block `block` as `rank` brought it: of its input, or of its data."""

    rank: int
    block: int


@dataclass(frozen=True, slots=True)
class Total:
    """The reduction of every rank's block `block`, each counted once, same bits wherever held."""

    block: int


Promise = Contribution | Total | None
"""What a block holds in the end. None: nothing is promised."""


@dataclass(frozen=True)
class Contract:
    """Precondition and postcondition of a collective.

    Attributes:
        name: as torch spells it.
        promise: what chunk i of `data`, or block i of `output`, holds in the end.
        input_blocks: how many blocks a seat brings; None where the collective works on `data`.
        output_blocks: how many blocks a seat gets; None where the collective works on `data`.
        shared_block: the input block and the output block that are the same memory where the
            caller works in place; None where this seat cannot.
        rooted: whether the collective has a root.
        one_length: block i has the same length on every rank (what is reduced must); otherwise
            every rank's block i may have a length of its own.
        meets: every rank hears from every rank, directly or through others, before it returns.
    """

    name: str
    promise: Callable[[Seat, int], Promise]
    input_blocks: Callable[[Seat], int] | None = None
    output_blocks: Callable[[Seat], int] | None = None
    shared_block: Callable[[Seat], tuple[int, int] | None] | None = None
    rooted: bool = False
    one_length: bool = False
    meets: bool = False

    def shape(self, seat: Seat, data_chunks: int) -> Shape:
        """Return how the buffers of a seat are cut; `data_chunks` counts only where `data` is."""
        if self.input_blocks is None or self.output_blocks is None:
            return Shape(data_chunks=data_chunks)
        return Shape(input_blocks=self.input_blocks(seat), output_blocks=self.output_blocks(seat))

    def length(self, seat: Seat, buffer: BufferName, block: int) -> Hashable:
        """Return a symbol for the length of a block: equal symbols, equal number of elements."""
        held: Promise = Contribution(seat.rank, block)
        if buffer is BufferName.OUTPUT:
            held = self.promise(seat, block)
        if self.one_length or not isinstance(held, Contribution):
            return None if held is None else held.block
        return held
