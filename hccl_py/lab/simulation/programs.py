"""A topology, costs and plans as numbers for `csrc/simulation`, with the engine's tiles."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hccl_py.lab._lab import LinkTimes, Programs, World
from hccl_py.lab.simulation.costs import US_PER_MIB_AT_1_GBIT, Costs, LinkCosts, wire_us_per_mib
from hccl_py.lab.simulation.folding import Fold
from hccl_py.lab.simulation.plan_source import PlanSource
from hccl_py.lab.simulation.topology import Topology
from hccl_py.plan.language import Buffer, Chunk, Op, Plan, PlanError
from hccl_py.plan.tiles import Tiles
from hccl_py.transport.errors import InvalidArgumentError

_MIB = 1 << 20
# Messages that a lane may have sent and the receiver not taken: over TCP until it must be
# acknowledged, in shared memory the least number of slots of a rank.
_TCP_CAPACITY, _SHM_CAPACITY = 64, 8
# Spaces, as in `Programs` in C++, whose chunks an op may overwrite before a send has left.
_NO_SPACE, _SCRATCH = 0, 3
_SPACES = {Buffer.DATA: 1, Buffer.OUTPUT: 2, Buffer.INPUT: _NO_SPACE}
_MOST_KEPT = 1_000_000  # messages of the plans that a fold keeps
_MOST_MESSAGES = 64_000_000  # of a tile: about a minute and 4 GB

Numbers = npt.NDArray[np.int32]


class _Share(NamedTuple):
    """How caches change the cost of bytes: by a factor, and by added microseconds per MiB."""

    warm: float
    cold_us_per_mib: float


def world_of(topology: Topology, costs: Costs, num_bytes: int) -> World:
    """Return the ranks with their nodes, machines and costs."""
    places = topology.machines or tuple(range(len(topology.nodes)))
    population: Counter[int] = Counter()  # of each machine
    for at, node in zip(places, topology.nodes, strict=True):
        population[at] += len(node)
    most, cores = max(population.values()), costs.cores_per_machine
    # A call that fits the caches does not wait for memory.
    uses_memory = num_bytes * most > costs.cache_bytes
    share = _Share(1.0, 0.0)
    if cores is not None and most > cores:  # ranks share cores
        share = _Share(1.0, costs.cold_us_per_mib) if uses_memory else _Share(costs.warm_share, 0.0)
    world, number = World(), {at: index for index, at in enumerate(population)}
    node_of, local_rank = [0] * topology.world_size, [0] * topology.world_size
    for index, node in enumerate(topology.nodes):
        for place, rank in enumerate(node):
            node_of[rank], local_rank[rank] = index, place
    world.node_of, world.local_rank = node_of, local_rank
    world.late_us = [topology.late_us.get(rank, 0.0) for rank in range(topology.world_size)]
    world.machine_of = [number[at] for at in places]
    world.cores = [
        cores if cores is not None and many > cores else 0 for many in population.values()
    ]
    world.scale_up = _link(costs.scale_up, share, _SHM_CAPACITY)
    # The kernel's buffers between nodes are not in the caches.
    world.scale_out = _link(costs.scale_out, share._replace(warm=1.0), _TCP_CAPACITY)
    world.node_links = [
        (*ends, wire_us_per_mib(gbit))
        for pair, gbit in topology.links_gbit.items()
        for ends in (pair, pair[::-1])
    ]
    if (network := topology.network) is not None:
        number_of = {arc: at for at, arc in enumerate(network.kbit_per_s)}
        rates = network.kbit_per_s.values()
        world.link_us_per_mib = [US_PER_MIB_AT_1_GBIT * 1e6 / kbit for kbit in rates]
        ways = network.routes.items()
        world.routes = {pair: [number_of[arc] for arc in way] for pair, way in ways}
    world.reduce_us_per_mib = costs.reduce_us_per_mib * share.warm + share.cold_us_per_mib
    world.result_us_per_mib = costs.result_us_per_mib * share.warm
    world.memory_us_per_mib = costs.memory_us_per_mib if uses_memory else 0.0
    return world


def _link(link: LinkCosts, share: _Share, capacity: int) -> LinkTimes:
    return LinkTimes(
        latency_us=link.latency_us,
        message_us=link.message_us,
        us_per_mib=link.us_per_mib * share.warm + share.cold_us_per_mib,
        wire_us_per_mib=link.wire_us_per_mib,
        burst_us=link.burst_bytes / _MIB * link.wire_us_per_mib,
        wiring=link.wiring,
        capacity=capacity,
    )


def programs_of(
    source: PlanSource, fold: Fold, tiles: Tiles, item_bytes: int, topology: Topology
) -> Programs:
    """Write the kept plans: those of the first group, or of all ranks.

    Raises:
        InvalidArgumentError: there are too many messages to simulate.
        PlanError: a message has no receiver.
    """
    programs, lengths = Programs(fold.move, fold.groups), _Lengths(tiles, item_bytes)
    num_messages, simulated = 0, len(fold.simulated)
    for at, rank in enumerate(fold.written):
        plan = fold.plans.get(rank) or source.write(rank)
        _check_routes(plan, topology)
        ops, peers = _flat(plan, lengths)
        num_messages += len(peers) // 2  # sent and received
        if num_messages <= _MOST_KEPT:  # for the next size
            fold.plans[rank] = plan
        expected = num_messages * simulated // (at + 1)
        if expected > _MOST_MESSAGES:
            raise InvalidArgumentError(
                f"{source.name}: {expected} messages in a tile of {simulated} ranks; expected "
                f"at most {_MOST_MESSAGES}: take another algorithm or fewer ranks; nodes that are "
                "alike, without stragglers and slow links, have fewest"
            )
        programs.add(ops, peers)
    if unmatched := programs.match():
        rank, op, peer = unmatched
        raise PlanError(rank, op, f"sends to rank {peer}, which receives nothing from it")
    return programs


def _check_routes(plan: Plan, topology: Topology) -> None:
    if topology.network is None:
        return
    for index, op in enumerate(plan.ops):
        for peer in op.peers if op.src else ():
            if (plan.rank, peer) not in topology.network.routes:
                problem = f"sends to rank {peer}, to which the network has no route"
                raise PlanError(plan.rank, index, problem)


class _Lengths:
    """Bytes of chunks in a full tile and in the last one."""

    def __init__(self, tiles: Tiles, item_bytes: int) -> None:
        self._tiles, self._item_bytes = tiles, item_bytes
        self._known: dict[Chunk, tuple[int, int]] = {}

    def of(self, chunk: Chunk) -> tuple[int, int]:
        key = chunk
        if chunk.scratch is not None and chunk.buffer is Buffer.DATA:
            key = chunk._replace(scratch=None)
        found = self._known.get(key)
        if found is None:
            full, last = (
                self._tiles.elements(at, chunk) * self._item_bytes
                for at in (0, self._tiles.number - 1)
            )
            found = self._known[key] = full, last
        return found


def _flat(plan: Plan, lengths: _Lengths) -> tuple[Numbers, Numbers]:
    """Return the rows of the ops and the peers of a plan, as `Programs.add` takes them."""
    rows = [_row(op, lengths) for op in plan.ops]
    peers = [peer for op in plan.ops for peer in op.peers]
    return np.array(rows, np.int32).reshape(-1, 7), np.array(peers, np.int32)


def _row(op: Op, lengths: _Lengths) -> tuple[int, ...]:
    chunk = op.dst or op.src
    assert chunk is not None
    read = op.src or chunk
    return (op.kind, *_place(chunk), *lengths.of(read), len(op.peers))


def _place(chunk: Chunk) -> tuple[int, int, int]:
    """Return where the chunk of an op lies: space, begin and end."""
    if chunk.scratch is not None:
        return _SCRATCH, chunk.scratch, chunk.scratch + chunk.slots
    return _SPACES[chunk.buffer], chunk.begin, chunk.end


def averaged(tiles: Tiles) -> Tiles:
    """Return tiles that divide evenly, else chunks of ranks that are alike differ by an element."""
    full, last = (-(-size // tiles.parts) * tiles.parts for size in (tiles.full, tiles.last))
    return tiles._replace(full=full, last=last)
