"""Cuts a call of the communicator into tiles: which arguments it reads and writes, and where.

Each tile is a collective over the same part of every block, so all ranks must cut alike. A call
stays whole if blocks may differ in size or only the root knows them, because all ranks must know
the number of tiles.

    all_gather of 3 ranks, 2 tiles      input  [a a|a a]     output [a a|a a][b b|b b][c c|c c]
                                               1st 2nd              1st  2nd  1st  2nd ...
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

TILE_BYTES = 4 << 20
"""Long enough to keep the network busy, short enough that the first copy ends soon."""
MAX_TILES = 16

Data = Tensor | Sequence[Tensor]


class Argument(NamedTuple):
    """One data argument of a call, and its use on this rank.

    `by_rank`: it has a block for every rank.
    """

    position: int
    reads: bool
    writes: bool
    by_rank: bool = False


_ARGUMENTS = {
    "all_reduce": (Argument(0, True, True),),
    "all_gather": (Argument(0, False, True, True), Argument(1, True, False)),
    "reduce_scatter": (Argument(0, False, True), Argument(1, True, False, True)),
    "all_to_all": (Argument(0, False, True, True), Argument(1, True, False, True)),
    "gather": (Argument(0, False, True, True), Argument(1, True, False)),
    "scatter": (Argument(0, False, True), Argument(1, True, False, True)),
    "send": (Argument(0, True, False),),
    "recv": (Argument(0, False, True),),
    "barrier": (),
}


def arguments_of(method: str, values: Sequence[Any], rank: int) -> Sequence[Argument]:
    """Return the arguments of a call that hold data on this rank."""
    if method == "broadcast":
        return (Argument(0, values[1] == rank, values[1] != rank),)
    if method == "reduce":
        return (Argument(0, True, values[1] == rank),)
    return tuple(
        argument for argument in _ARGUMENTS[method] if values[argument.position] is not None
    )


def num_tiles(method: str, values: Sequence[Any], world_size: int) -> int:
    """Return the number of tiles of a call; the same on all ranks."""
    if method in ("all_reduce", "broadcast", "reduce"):
        return _tiles(values[0].numel(), values[0].nbytes)
    if method in ("all_gather", "reduce_scatter", "all_to_all"):
        one, blocks = (values[1], values[0]) if method == "all_gather" else values[:2]
        if method == "all_to_all":
            if not isinstance(one, Tensor) or not isinstance(blocks, Tensor):
                return 1
            return _tiles(one.numel() // world_size, one.nbytes)
        if isinstance(blocks, Tensor) or all(block.numel() == one.numel() for block in blocks):
            return _tiles(one.numel(), one.nbytes * world_size)
    return 1


def _tiles(count: int, num_bytes: int) -> int:
    return max(1, min(-(-num_bytes // TILE_BYTES), MAX_TILES, count))


def pieces_of(data: Data, num_blocks: int, tiles: int) -> list[tuple[Tensor, ...]]:
    """Return, for each tile, its part of each block; the first tiles may be longer.

    The data is contiguous: blocks, or a tensor of `num_blocks` equal ones.
    """
    if isinstance(data, Tensor):
        data = data.view(-1).tensor_split(num_blocks)
    return list(zip(*(block.view(-1).tensor_split(tiles) for block in data), strict=True))
