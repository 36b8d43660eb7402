"""The partition of a call into tiles: the arithmetic of `Tiling` in csrc/engine/calls/plan.cc.

The engine computes it in C++ for every call. This file predicts the result, and has the two numbers
that all ranks must agree on.
"""

from typing import NamedTuple

from hccl_py.plan.language import Buffer, Chunk

NUM_CHANNELS = 2
_CACHE_LINE = 64


def slot_bytes(world_size: int) -> int:
    """Return the largest message in bytes.

    Each local rank and channel has two slots: small ones keep a large communicator's segment small.
    It depends only on the world size, because all ranks must cut the same tiles.
    """
    if world_size <= 32:
        return 128 * 1024
    return 64 * 1024 if world_size <= 128 else 32 * 1024


LONG_BYTES = 1 << 20
"""The most bytes of a message of an algorithm with long messages; `max_long_bytes` in C++."""


class Tiles(NamedTuple):
    """The tiles of a call. A tile has elements of all chunks of `data`, or of one block."""

    number: int
    full: int  # elements of every tile but the last
    last: int
    parts: int  # chunks of a tile: those of `data`, or of a block

    def elements(self, tile: int, chunk: Chunk) -> int:
        """Return a chunk's number of elements in a tile, by the engine's partition."""
        whole = self.last if tile == self.number - 1 else self.full
        if chunk.slots > 1:  # blocks are not cut then
            return whole * chunk.slots
        first = chunk.begin if chunk.buffer is Buffer.DATA else chunk.begin % self.parts
        each, longer = divmod(whole, self.parts)
        last = first + chunk.end - chunk.begin
        begin, end = (part * each + min(part, longer) for part in (first, last))
        return end - begin


class Cut(NamedTuple):
    """The properties of a call, besides its size, that decide its tiles."""

    data_chunks: int  # 0: of a collective on blocks
    span: int  # most chunks in one op of any rank
    world_size: int
    min_message_bytes: int
    item_bytes: int = 4
    long_messages: bool = False  # of a collective on blocks
    block_parts: int = 1

    def tiles(self, count: int) -> Tiles:
        """Cut `count` elements: of `data`, or of the longest block."""
        longest = LONG_BYTES if self.long_messages else slot_bytes(self.world_size)
        most = longest // self.item_bytes // self.span
        if not self.data_chunks:
            return _tiles(count, most * self.block_parts, self.block_parts)
        line = max(1, _CACHE_LINE // self.item_bytes)
        # Enough tiles that every channel has two to overlap, within the two limits.
        wanted = _divide_up(count, self.data_chunks * 2 * NUM_CHANNELS)
        least = _divide_up(_divide_up(self.min_message_bytes, self.item_bytes), self.span)
        chunk = min(max(_divide_up(max(wanted, least), line) * line, 1), most)
        return _tiles(count, chunk * self.data_chunks, self.data_chunks)


def _tiles(count: int, full: int, parts: int) -> Tiles:
    number = max(1, _divide_up(count, full))
    return Tiles(number, full, count - (number - 1) * full, parts)


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)
