"""The symbolic memory of one rank: which value every block and scratch slot holds."""

from collections import Counter
from collections.abc import Hashable

from hccl_py.plan.chunks import BufferName, Chunk
from hccl_py.plan.contract import Contract, Contribution, Seat
from hccl_py.plan.ops import Shape
from hccl_py.plan.values import Values

Place = tuple[str, int]
"""A block of a buffer, or a scratch slot."""

Lengths = tuple[Hashable, ...]
"""Symbols of the lengths of the chunks of a range."""


class Memory:
    """What a rank holds, and which places its unsent messages still read.

    Attributes:
        unsent: for every place, how many sends still read it.
        last_writer: the op that wrote a place last.
    """

    def __init__(self, contract: Contract, seat: Seat, shape: Shape, in_place: bool) -> None:
        """Describe empty memory; `in_place` makes the contract's shared block one place."""
        self._contract = contract
        self._seat = seat
        self._held: dict[Place, tuple[Lengths, tuple[int, ...]]] = {}
        self._alias: dict[Place, Place] = {}
        self.unsent: Counter[Place] = Counter()
        self.last_writer: dict[Place, int] = {}
        shared = contract.shared_block(seat) if in_place and contract.shared_block else None
        if shared is not None:
            self._alias["output", shared[1]] = ("input", shared[0])
        self._shape = shape

    def load(self, values: Values) -> None:
        """Put this rank's own contributions into `data` and `input`."""
        for buffer in (BufferName.DATA, BufferName.INPUT):
            for block in range(self._shape.parts(buffer)):
                leaf = values.leaf(Contribution(self._seat.rank, block))
                self._held[buffer.name.lower(), block] = (
                    (self._contract.length(self._seat, buffer, block),),
                    (leaf,),
                )

    def places(self, chunk: Chunk) -> tuple[Place, ...]:
        """Return the places that a chunk covers."""
        if chunk.scratch is not None:
            return (("scratch", chunk.scratch),)
        name = chunk.buffer.name.lower()
        blocks = [(name, block) for block in range(chunk.begin, chunk.end)]
        return tuple(self._alias.get(place, place) for place in blocks)

    def lengths(self, chunk: Chunk) -> Lengths:
        """Return the length symbols of a chunk."""
        return tuple(
            self._contract.length(self._seat, chunk.buffer, block)
            for block in range(chunk.begin, chunk.end)
        )

    def read(self, chunk: Chunk) -> tuple[int, ...]:
        """Return the values that a chunk holds.

        Raises:
            ValueError: if nothing was written there, or a scratch slot holds another length.
        """
        values: tuple[int, ...] = ()
        for place in self.places(chunk):
            if place not in self._held:
                raise ValueError(f"reads {chunk}, which nothing was written to")
            held_lengths, held = self._held[place]
            if chunk.scratch is not None and held_lengths != self.lengths(chunk):
                raise ValueError(f"reads {chunk}, which was written with another length")
            values += held
        return values

    def write(self, chunk: Chunk, values: tuple[int, ...], op_index: int) -> None:
        """Make `chunk` hold `values`."""
        lengths, places = self.lengths(chunk), self.places(chunk)
        if chunk.scratch is not None:
            self._held[places[0]] = (lengths, values)
        else:
            for place, length, value in zip(places, lengths, values, strict=True):
                self._held[place] = ((length,), (value,))
        self.last_writer.update(dict.fromkeys(places, op_index))

    def is_unsent(self, chunk: Chunk) -> bool:
        """Tell whether an earlier send from this chunk still reads it."""
        return any(self.unsent[place] for place in self.places(chunk))
