"""Symbolic buffers, and the chunks of them that ops name. No bytes and no element types here.

An algorithm writes `data[2]`, `data[0:4]`, `data[:]`, `input[0]`, `output[peer]`. What the numbers
mean in elements is decided in `lower.py`.
"""

import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

OPEN_END = sys.maxsize
"""End of a range such as `data[:]` until the builder, who knows the chunk count, closes it."""


class BufferName(IntEnum):
    """Buffers of a collective, with the numbers that the engine uses."""

    DATA = 0
    INPUT = 1
    OUTPUT = 2


class Chunk(NamedTuple):
    """A range of chunks of a buffer, or a scratch slot with the length of such a range.

    Attributes:
        buffer: which buffer.
        begin: first chunk of the range.
        end: one past its last chunk.
        scratch: None for the range itself; k for scratch slot k with the range's length.
    """

    buffer: BufferName
    begin: int
    end: int
    scratch: int | None = None

    def in_scratch(self, slot: int) -> "Chunk":
        """Return scratch slot `slot`, as long as this chunk."""
        return self._replace(scratch=slot)

    def __str__(self) -> str:
        """Spell the chunk as an algorithm writes it."""
        index = f"{self.begin}" if self.end == self.begin + 1 else f"{self.begin}:{self.end}"
        text = f"{self.buffer.name.lower()}[{index}]"
        return text if self.scratch is None else f"scratch[{self.scratch}] like {text}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer that is cut into chunks; indexing it names one chunk or a range of them."""

    name: BufferName

    def __getitem__(self, key: int | slice) -> Chunk:
        """Name chunk `key`, or a contiguous range of chunks.

        Raises:
            IndexError: on a negative index (a neighbour computed without `% n` must not wrap
                silently) or a step.
        """
        if isinstance(key, int):
            begin, end, step = key, key + 1, 1
        else:
            begin = 0 if key.start is None else key.start
            end = OPEN_END if key.stop is None else key.stop
            step = 1 if key.step is None else key.step
        if begin < 0 or end < 0 or step != 1:
            raise IndexError(f"{self.name.name.lower()}[{key}]: chunks count up from 0, one by one")
        return Chunk(self.name, begin, end)


data = Buffer(BufferName.DATA)
"""The buffer of an in-place collective, cut into as many chunks as the algorithm's entry says."""

input = Buffer(BufferName.INPUT)
"""The blocks that a rank brings; read only."""

output = Buffer(BufferName.OUTPUT)
"""The blocks that a rank gets."""
