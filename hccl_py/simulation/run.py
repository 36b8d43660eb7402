"""`simulate`: an algorithm or plans, on a topology, with costs, for a number of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from hccl_py.algorithms.tuner import min_message_bytes
from hccl_py.plan.language import Buffer, Nodes
from hccl_py.plan.tiles import Cut
from hccl_py.simulation.candidate import Candidate, What, candidate_of, count_elements
from hccl_py.simulation.costs import Costs
from hccl_py.simulation.folding import Fold, fold_of
from hccl_py.simulation.parts import Rank
from hccl_py.simulation.programs import Programs, Work, averaged
from hccl_py.simulation.steady import Steadiness
from hccl_py.simulation.topology import Topology
from hccl_py.simulation.virtual_time import VirtualTime
from hccl_py.transport.errors import InvalidArgumentError

_MOST_MESSAGES = 3_000_000  # of a tile: some ten seconds


@dataclass(frozen=True)
class Simulated:
    """What a simulation found out.

    Attributes:
        algorithm: as in `all_reduce=ring`.
        us: time of a call: from its begin until the last rank has ended. Of several calls back to
            back, the mean over all but the first.
        rank_us: by simulated rank, when it ended its first call.
        num_tiles: of the call.
        num_left_out: of these, how many were counted only, because tiles repeat themselves.
        messages: by simulated rank, how many it sent in the tiles that were run.
    """

    algorithm: str
    us: float
    rank_us: dict[int, float]
    num_tiles: int
    num_left_out: int
    messages: dict[int, int]

    @property
    def num_ranks(self) -> int:
        """How many ranks were simulated: all, or those of a node that stands for all."""
        return len(self.rank_us)


def simulate(
    what: What,
    topology: Topology,
    costs: Costs,
    num_bytes: int,
    *,
    root: int | None = None,
    item_bytes: int = 4,
    num_calls: int = 1,
    shorten: bool = True,
) -> Simulated:
    """Run a collective in virtual time, with the engine's tiles, channels and rules.

    Args:
        what: an algorithm as HCCL_ALGORITHM names it, such as `all_reduce=ring`; one of your own;
            or the plans of all ranks.
        topology: where the ranks are.
        costs: of the machine and its network.
        num_bytes: of `data`; of all blocks, for a collective on blocks.
        root: of a rooted collective; None: rank 0.
        item_bytes: of an element.
        num_calls: how many calls follow one another; of several, the bursts of wires are used up.
        shorten: simulate one node for all where nodes are alike, and stop where tiles repeat
            themselves. The result is the same.

    Raises:
        InvalidArgumentError: an argument makes no sense, or the world is too large for ranks that
            are not alike.
        PlanError: plans hang.
    """
    if num_bytes < item_bytes or num_calls < 1:
        raise InvalidArgumentError(
            f"expected at least {item_bytes} bytes and a call, got {num_bytes} and {num_calls}"
        )
    candidate = _candidate(what, topology.nodes, root)
    first = candidate.write(0)
    elements = count_elements(first, num_bytes, item_bytes)
    chunks, least = first.shape[Buffer.DATA], min_message_bytes(topology.nodes)
    cut = Cut(chunks, candidate.span, topology.world_size, least, item_bytes)
    tiles = cut.tiles(elements)
    # Where there are fewer elements than chunks, some ranks have nothing to send.
    can_fold = shorten and topology.is_uniform and elements >= tiles.parts
    fold = _fold(candidate, topology.nodes) if can_fold else Fold(topology.nodes, None)
    if not fold.is_whole:
        tiles = averaged(tiles)
    programs = Programs(topology, costs, fold, Work(tiles, num_bytes, item_bytes, num_calls))
    num_messages = _write_plans(programs, candidate, fold)
    index = {rank.number: at for at, rank in enumerate(programs.ranks)}
    steadiness = Steadiness(index, num_messages) if shorten and num_calls == 1 else None
    VirtualTime(programs.ranks, programs.steps, num_calls).run(tiles.number, steadiness)
    return _simulated(candidate.name, programs.ranks, tiles.number, steadiness)


def _simulated(
    name: str, ranks: Sequence[Rank], num_tiles: int, steadiness: Steadiness | None
) -> Simulated:
    more_us, num_left_out = 0.0, 0
    if steadiness is not None:
        more_us, num_left_out = steadiness.left_out_us, steadiness.num_left_out
    firsts = {rank.number: rank.ended_us[0] + more_us for rank in ranks}
    us, num_more = max(firsts.values()), len(ranks[0].ended_us) - 1
    if num_more:
        us = (max(rank.ended_us[-1] for rank in ranks) - us) / num_more
    messages = {rank.number: rank.num_messages for rank in ranks}
    return Simulated(name, us, firsts, num_tiles, num_left_out, messages)


def _candidate(what: What, nodes: Nodes, root: int | None) -> Candidate:
    return _known(what, nodes, root) if isinstance(what, str) else candidate_of(what, nodes, root)


# Other sizes of the same algorithm come next.
_known = lru_cache(maxsize=8)(candidate_of)
_fold = lru_cache(maxsize=8)(fold_of)


def _write_plans(programs: Programs, candidate: Candidate, fold: Fold) -> int:
    """Write the plans of the ranks that are simulated; return how many messages they send."""
    num_messages = 0
    for at, rank in enumerate(fold.ranks):
        plan = programs.plans[rank] = fold.plans.get(rank) or candidate.write(rank)
        num_messages += sum(len(op.peers) for op in plan.ops)
        expected = num_messages // (at + 1) * len(fold.ranks)
        if expected > 2 * _MOST_MESSAGES:
            raise InvalidArgumentError(
                f"{candidate.name}: {expected // 2} messages in a tile of {len(fold.ranks)} ranks "
                f"that are not alike; expected at most {_MOST_MESSAGES}: take fewer ranks, or "
                "nodes of equal size without stragglers and slow links"
            )
    return num_messages // 2
