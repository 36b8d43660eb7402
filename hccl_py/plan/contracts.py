"""The collectives: the contents of all ranks' buffers before and after each one.

`all_reduce`, `broadcast`, `reduce` and `barrier` work on `data`, in place. The others read `input`
and write `output`, blocks that an algorithm may cut into parts. The `data` of a non-root rank
before a broadcast counts as its contribution, which must not appear in a result.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from hccl_py.plan.language import Buffer, Plan, Shape


@dataclass(frozen=True, slots=True)
class Contribution:
    """Block `block` of the input or data of `rank`."""

    rank: int
    block: int


@dataclass(frozen=True, slots=True)
class Total:
    """The reduction of every rank's block `block`, each counted once, bitwise equal on all
    ranks."""

    block: int


Promise = Contribution | Total | None
"""The contents of a block in the end. None: undefined."""


@dataclass(frozen=True)
class Contract:
    """Precondition and postcondition of a collective, by rank, world size and root of a plan."""

    name: str  # as torch spells it
    # Returns the final contents of chunk i of `data`, or of block i of `output`.
    block_promise: Callable[[Plan, int], Promise]
    # Number of input and output blocks of a rank; None if the collective works on `data`.
    blocks: Callable[[Plan], tuple[int, int]] | None = None
    # The input and output blocks that share memory in a call in place.
    shared_block: Callable[[Plan], tuple[int, int] | None] = lambda _plan: None
    rooted: bool = False
    # Block i has the same length on every rank, as reductions need, not one per rank.
    one_length: bool = False
    # Every rank receives from every rank, directly or through others, before it returns.
    meets: bool = False
    # All blocks of all ranks have one length. Set for algorithms that rely on it (`table.py`).
    equal_blocks: bool = False
    # A total is one reduction of all ranks' contributions, in rank order.
    in_rank_order: bool = False

    def shape(self, plan: Plan, chunks: int) -> Shape:
        """Return the partition of a rank's buffers: `chunks` of `data`, or of each block."""
        if self.blocks is None:
            return Shape(chunks)
        parts, (brings, gets) = max(1, chunks), self.blocks(plan)
        return Shape(0, brings * parts, gets * parts, parts)

    def promise(self, plan: Plan, chunk: int) -> Promise:
        """Return the final contents of a chunk of `data` or `output`."""
        parts = plan.shape.block_parts
        held = self.block_promise(plan, chunk // parts)
        return held and replace(held, block=held.block * parts + chunk % parts)

    def length(self, plan: Plan, buffer: Buffer, block: int) -> Hashable:
        """Return a symbol for the length of a block: equal symbols, equal number of elements."""
        if self.equal_blocks:
            return block % plan.shape.block_parts
        held: Promise = Contribution(plan.rank, block)
        if buffer is Buffer.OUTPUT:
            held = self.promise(plan, block)
        if self.one_length or not isinstance(held, Contribution):
            return None if held is None else held.block
        return held


def _at_root(plan: Plan) -> int:
    return plan.world_size if plan.rank == plan.root else 0


def _from_root(plan: Plan, block: int) -> Contribution:
    assert plan.root is not None
    return Contribution(plan.root, block)


_ALL = (
    Contract("all_reduce", block_promise=lambda _plan, chunk: Total(chunk), one_length=True),
    Contract("broadcast", block_promise=_from_root, rooted=True, one_length=True),
    Contract(
        "reduce",
        block_promise=lambda plan, chunk: (
            Total(chunk) if plan.rank == plan.root else Contribution(plan.rank, chunk)
        ),
        rooted=True,
        one_length=True,
    ),
    Contract(
        "all_gather",
        block_promise=lambda _plan, block: Contribution(block, 0),
        blocks=lambda plan: (1, plan.world_size),
        shared_block=lambda plan: (0, plan.rank),
    ),
    Contract(
        "reduce_scatter",
        block_promise=lambda plan, _block: Total(plan.rank),
        blocks=lambda plan: (plan.world_size, 1),
        shared_block=lambda plan: (plan.rank, 0),
        one_length=True,
    ),
    Contract(
        "all_to_all",
        block_promise=lambda plan, block: Contribution(block, plan.rank),
        blocks=lambda plan: (plan.world_size, plan.world_size),
    ),
    Contract(
        "gather",
        block_promise=lambda _plan, block: Contribution(block, 0),
        blocks=lambda plan: (1, _at_root(plan)),
        shared_block=lambda plan: (0, plan.rank) if plan.rank == plan.root else None,
        rooted=True,
    ),
    Contract(
        "scatter",
        block_promise=lambda plan, _block: _from_root(plan, plan.rank),
        blocks=lambda plan: (_at_root(plan), 1),
        shared_block=lambda plan: (plan.rank, 0) if plan.rank == plan.root else None,
        rooted=True,
    ),
    Contract("barrier", block_promise=lambda _plan, _chunk: None, one_length=True, meets=True),
)
COLLECTIVES = {contract.name: contract for contract in _ALL}
"""Every collective by name."""
