"""The symbolic memory of one rank: the value of every block and scratch slot."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from hccl_py.plan.contracts import Contract, Contribution
from hccl_py.plan.language import Buffer, Chunk, Plan

Place = tuple[Buffer | None, int]
"""A block of a buffer, or a scratch slot (None)."""


@dataclass(frozen=True)
class Rounded:
    """A value after compression, as its receivers decode it and its sender rounds it."""

    value: "Value"


_MOST_SPELT = 64  # contributions

Tree = Contribution | Rounded | tuple["Value", ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A contribution, a tree of reductions, or one of these after rounding.

    Equal trees are one object, so that comparisons cost the same for leaves and for reductions of
    all ranks. A value has the same bits wherever it is held; two trees over the same leaves need
    not.
    """

    tree: Tree
    block: int
    ranks: int  # bit mask of the ranks that contributed

    def __str__(self) -> str:
        """Render a value: `2.0` is block 0 of rank 2, `(0.0 + 1.0)` a reduction."""
        if self.ranks.bit_count() > _MOST_SPELT:
            return f"(block {self.block} of {self.ranks.bit_count()} ranks)"
        if isinstance(self.tree, Contribution):
            return f"{self.tree.rank}.{self.tree.block}"
        if isinstance(self.tree, Rounded):
            return f"~{self.tree.value}"
        return f"({' + '.join(map(str, self.tree))})"


class CountedTwiceError(ValueError):
    """A reduction counts the contribution of some ranks twice."""

    def __init__(self, block: int, ranks: int) -> None:
        super().__init__(f"counts the contribution of rank {listed(ranks)} twice")
        self.block = block
        self.ranks = ranks  # bit mask


class Values(dict[Tree, Value]):
    """The values of one simulation, by their trees."""

    def leaf(self, contribution: Contribution) -> Value:
        """Return the value of a contribution."""
        leaf = Value(contribution, contribution.block, 1 << contribution.rank)
        return self.setdefault(contribution, leaf)

    def reduced(self, operands: Sequence[Value]) -> Value:
        """Reduce in this order; ValueError for different blocks, or a rank that counts twice."""
        block, ranks = operands[0].block, 0
        for operand in operands:
            if operand.block != block:
                raise ValueError(f"reduces block {block} together with block {operand.block}")
            if twice := ranks & operand.ranks:
                raise CountedTwiceError(block, twice)
            ranks |= operand.ranks
        if len(operands) == 2:  # every reduction of two has the same bits in either order
            operands = sorted(operands, key=lambda one: one.ranks & -one.ranks)
        return self.setdefault(tuple(operands), Value(tuple(operands), block, ranks))

    def rounded(self, value: Value) -> Value:
        """Round once; ValueError: it is rounded, and rounding again may change bits."""
        if isinstance(value.tree, Rounded):
            raise ValueError(f"compresses {value}, which was compressed before")
        rounded = Rounded(value)
        return self.setdefault(rounded, Value(rounded, value.block, value.ranks))


def listed(ranks: int) -> str:
    """Render the ranks of a bit mask; empty if there is none."""
    found = [str(rank) for rank in range(ranks.bit_length()) if ranks >> rank & 1]
    more = [f"and {len(found) - _MOST_SPELT} more"] * (len(found) > _MOST_SPELT)
    return ", ".join(found[:_MOST_SPELT] + more)


class Memory:
    """The contents of a rank's buffers, and the places that unsent messages still read."""

    def __init__(self, contract: Contract, plan: Plan, values: Values, in_place: bool) -> None:
        """Start with the rank's contributions; `in_place` makes the shared block one place."""
        self.unsent: Counter[Place] = Counter()  # how many sends still read a place
        self.last_writer: dict[Place, int] = {}  # the op that wrote a place last
        self._contract = contract
        self._plan = plan
        self._alias: dict[Place, Place] = {}
        if in_place and (shared := contract.shared_block(plan)):
            parts = plan.shape.block_parts
            for part in range(parts):
                place = Buffer.OUTPUT, shared[1] * parts + part
                self._alias[place] = (Buffer.INPUT, shared[0] * parts + part)
        # By place, the lengths of its chunks, as symbols, and their values.
        self._held: dict[Place, tuple[tuple[Hashable, ...], tuple[Value, ...]]] = {}
        for buffer in (Buffer.DATA, Buffer.INPUT):
            for block in range(plan.shape[buffer]):
                leaf = values.leaf(Contribution(plan.rank, block))
                self._held[buffer, block] = (self.lengths(buffer[block]), (leaf,))

    def places(self, chunk: Chunk) -> tuple[Place, ...]:
        """Return the places that a chunk covers."""
        if chunk.scratch is not None:
            return tuple((None, chunk.scratch + slot) for slot in range(chunk.slots))
        blocks = [(chunk.buffer, block) for block in range(chunk.begin, chunk.end)]
        return tuple(self._alias.get(place, place) for place in blocks)

    def lengths(self, chunk: Chunk) -> tuple[Hashable, ...]:
        """Return the length symbols of a chunk; ValueError: slots of one message differ."""
        blocks = range(chunk.begin, chunk.end)
        found = tuple(self._contract.length(self._plan, chunk.buffer, block) for block in blocks)
        if chunk.slots > 1 and len(set(found)) > 1:
            raise ValueError(f"takes the blocks of {chunk} to have one length")
        return found

    def _pieces(self, chunk: Chunk) -> Iterator[tuple[Place, tuple[Hashable, ...]]]:
        places, lengths = self.places(chunk), self.lengths(chunk)
        each = len(lengths) // len(places)  # one slot holds all chunks of `data`
        for at, place in enumerate(places):
            yield place, lengths[at * each : (at + 1) * each]

    def read(self, chunk: Chunk) -> tuple[Value, ...]:
        """Return a chunk's values; ValueError: unwritten, or a scratch slot of another length."""
        values: list[Value] = []
        for place, lengths in self._pieces(chunk):
            if place not in self._held:
                raise ValueError(f"reads {chunk}, which was never written")
            held_lengths, held = self._held[place]
            if chunk.scratch is not None and held_lengths != lengths:
                raise ValueError(f"reads {chunk}, which was written with another length")
            values += held
        return tuple(values)

    def write(self, chunk: Chunk, values: tuple[Value, ...], op_index: int) -> None:
        """Make `chunk` hold `values`."""
        at = 0
        for place, lengths in self._pieces(chunk):
            self._held[place] = (lengths, values[at : at + len(lengths)])
            self.last_writer[place] = op_index
            at += len(lengths)

    def is_unsent(self, chunk: Chunk) -> bool:
        """Return whether an earlier send from this chunk still reads it."""
        return any(self.unsent[place] for place in self.places(chunk))
