"""`simulate` runs an algorithm or plans on a topology, with costs, for a number of bytes."""

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hccl_py.algorithms.choice.tuner import min_message_bytes
from hccl_py.lab._lab import Move, VirtualTime
from hccl_py.lab.simulation.costs import Costs, costs_of
from hccl_py.lab.simulation.events import Events, events_of
from hccl_py.lab.simulation.folding import fold_of, whole
from hccl_py.lab.simulation.plan_source import PlanSource, What, plan_source_of
from hccl_py.lab.simulation.programs import averaged, programs_of, world_of
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.language import Buffer, Nodes, PlanError
from hccl_py.plan.tiles import Cut, slot_bytes
from hccl_py.transport.arguments import flag, whole_number, wrong
from hccl_py.transport.errors import InvalidArgumentError

_MANY_RANKS = 256
_EXACT_MESSAGES = 24_000_000  # some ten seconds


@dataclass(frozen=True)
class Simulated:
    """The result of a simulation.

    Attributes:
        algorithm: as in `all_reduce=ring`.
        us: time of a call, from its begin until the last rank has ended; of several calls back to
            back the mean over all but the first.
        rank_us: by simulated rank, the end of its first call.
        num_tiles: tiles of the call.
        num_left_out: tiles that were not run but extrapolated, because tiles repeat themselves.
        messages: by simulated rank, the messages that it sent in the tiles that were run.
        error_us: estimated error of `us`, because the extrapolated tiles did not repeat
            themselves exactly.
        events: all work and messages, if they were wanted.
    """

    algorithm: str
    us: float
    rank_us: dict[int, float]
    num_tiles: int
    num_left_out: int
    messages: dict[int, int]
    error_us: float = 0.0
    events: Events | None = None

    @property
    def num_ranks(self) -> int:
        """Number of simulated ranks: all, or those of one node."""
        return len(self.rank_us)


def simulate(
    what: What,
    topology: Topology,
    costs: Costs | str | Path,
    num_bytes: int,
    *,
    root: int | None = None,
    item_bytes: int = 4,
    num_calls: int = 1,
    shorten: bool = True,
    events: bool = False,
) -> Simulated:
    """Run a collective in virtual time, with the engine's tiles, channels and rules.

    Args:
        what: an algorithm in the syntax of HCCL_ALGORITHM, without sizes, such as
            `all_reduce=ring`; one of your own; or the plans of all ranks.
        topology: where the ranks are.
        costs: of the machine and its network; or the name of a preset, such as `gaudi2`, or the
            file of `hccl-plan calibrate` or `hccl-bench --tune`.
        num_bytes: bytes of `data`, or of all blocks for a collective on blocks.
        root: of a rooted collective; None: rank 0.
        item_bytes: bytes of an element.
        num_calls: calls back to back; with several, the bursts of wires are used up.
        shorten: simulate one node for all if nodes are alike, and stop when tiles repeat
            themselves. The result is the same, up to `Simulated.error_us`.
        events: return what every rank and link did too, without shortening.

    Raises:
        InvalidArgumentError: an argument is wrong, or there are too many ranks that differ.
        PlanError: the plans deadlock.
    """
    if not isinstance(topology, Topology):
        raise wrong("topology", "a Topology", topology)
    costs = costs_of(costs)
    whole_number("item_bytes", item_bytes, "a whole number above 0", range(1, 1 << 31))
    some = f"a whole number of at least {item_bytes} (item_bytes)", range(item_bytes, 1 << 62)
    whole_number("num_bytes", num_bytes, *some)
    whole_number("num_calls", num_calls, "a whole number above 0", range(1, 1 << 31))
    if root is not None:
        among = f"a rank of 0..{topology.world_size - 1}", range(topology.world_size)
        root = whole_number("root", root, *among)
    shorten = flag("shorten", shorten) and not flag("events", events)
    source = _plan_source(what, topology.nodes, root)
    first = source.write(0)
    if source.span > (most := slot_bytes(topology.world_size) // item_bytes):
        raise InvalidArgumentError(
            f"{source.name}: among {topology.world_size} ranks a message would have {source.span} "
            f"chunks, expected at most {most}: take fewer ranks, or another algorithm"
        )
    elements = num_bytes // item_bytes
    if not first.shape[Buffer.DATA]:  # of a block
        elements = -(-elements // topology.world_size)
    chunks, least = first.shape[Buffer.DATA], min_message_bytes(topology.nodes)
    world_size, long_messages = topology.world_size, source.long_messages
    parts = first.shape.block_parts
    cut = Cut(chunks, source.span, world_size, least, item_bytes, long_messages, parts)
    tiles = cut.tiles(elements)
    # Ranks are not alike if there are fewer elements than chunks, because some have nothing to send
    # then, or, in small worlds, if chunks differ by an element.
    nodes = topology.nodes
    # In a call of many tiles that is less than can be seen.
    is_alike = averaged(tiles) == tiles or world_size > _MANY_RANKS
    is_alike |= topology.is_uniform and tiles.number > 1
    can_fold = shorten and elements >= tiles.parts and is_alike
    fold = _fold(source, nodes, topology.is_uniform) if can_fold else whole(nodes)
    if fold.move is not Move.NONE:
        tiles = averaged(tiles)
    programs = programs_of(source, fold, tiles, item_bytes, topology)
    world = world_of(topology, costs, num_bytes)
    exact = _EXACT_MESSAGES if shorten else 0
    run = VirtualTime(world, programs, fold.simulated, num_calls, tiles.number, exact)
    if events:
        run.record()
    if stuck := run.run():
        rank, op, others = stuck
        more = f"waits for ever, as do {others} more ranks"
        raise PlanError(rank, None if op < 0 else op, more)
    ended_us, (num_left_out, more_us, error_us) = run.ended_us(), run.left_out()
    firsts = {rank: ends[0] + more_us for rank, ends in zip(fold.simulated, ended_us, strict=True)}
    us = max(firsts.values())
    if num_calls > 1:
        us = (max(ends[-1] for ends in ended_us) - us) / (num_calls - 1)
    messages = dict(zip(fold.simulated, run.num_messages(), strict=True))
    done = Simulated(source.name, us, firsts, tiles.number, num_left_out, messages, error_us)
    if not events:
        return done
    plans = [source.write(rank) for rank in range(topology.world_size)]
    return replace(done, events=events_of(run.happened(), plans, topology))


def _plan_source(what: What, nodes: Nodes, root: int | None) -> PlanSource:
    return _known(what, nodes, root) if isinstance(what, str) else plan_source_of(what, nodes, root)


# Cached, because callers simulate other sizes of the same algorithm next.
_known = lru_cache(maxsize=8)(plan_source_of)
_fold = lru_cache(maxsize=8)(fold_of)
