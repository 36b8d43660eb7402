"""What every rank does, with its costs: plans, tiles, a topology and numbers become steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from hccl_py.plan.language import COPY, RECV_REDUCE, SEND, Buffer, Chunk, Op, Plan
from hccl_py.plan.tiles import NUM_CHANNELS, Tiles
from hccl_py.simulation.costs import Costs, LinkCosts, Wiring, wire_us_per_mib
from hccl_py.simulation.folding import Fold
from hccl_py.simulation.parts import Channel, Lane, Machine, Message, Rank, Step, Way, Wire
from hccl_py.simulation.topology import Topology

_MIB = 1 << 20
# Messages sent and not taken: of a lane over TCP until it must be acknowledged; of shared memory
# the slots that a rank has at least.
_TCP_CAPACITY, _SHM_CAPACITY = 64, 8


class Work(NamedTuple):
    """The calls that are simulated."""

    tiles: Tiles
    num_bytes: int
    item_bytes: int
    num_calls: int


class Programs:
    """Makes the ranks that are simulated, and the steps of each of their tiles.

    Attributes:
        ranks: that are simulated.
        plans: theirs; to be filled in before the first step is asked for.
    """

    def __init__(self, topology: Topology, costs: Costs, fold: Fold, work: Work) -> None:
        self._topology = topology
        self._costs = costs
        self._fold = fold
        self._work = work
        self.plans: dict[int, Plan] = {}
        self._lanes: dict[tuple[int, int, int], Lane] = {}
        self._wires: dict[object, Wire] = {}
        self._made: dict[tuple[int, int, bool], list[Step]] = {}
        places = topology.machines or range(len(topology.nodes))
        self._population: Counter[int] = Counter()  # of each machine
        for at, node in zip(places, topology.nodes, strict=True):
            self._population[at] += len(node)
        most = max(self._population.values())
        # Only a call that does not fit the caches waits for memory.
        self._uses_memory = work.num_bytes * most > costs.cache_bytes
        takes_turns = costs.cores_per_machine is not None and most > costs.cores_per_machine
        # What a byte takes of a thread: a share of its cost, and something more.
        self._share, self._cold_us = 1.0, 0.0
        if takes_turns and self._uses_memory:
            self._cold_us = costs.cold_us_per_mib
        elif takes_turns:
            self._share = costs.warm_share
        self.ranks = self._make_ranks()
        self._by_number = {rank.number: rank for rank in self.ranks}

    def _make_ranks(self) -> list[Rank]:
        fold, topology = self._fold, self._topology
        places = topology.machines or range(len(topology.nodes))
        cores = self._costs.cores_per_machine
        machines = {
            at: Machine(cores if cores is not None and number > cores else None)
            for at, number in self._population.items()
        }
        ranks = []
        for number in fold.ranks:
            machine = machines[places[fold.node(number)]]
            late_us = topology.late_us.get(number, 0.0)
            rank = Rank(number, fold.local_rank(number), machine, late_us)
            rank.channels = [Channel(rank, channel) for channel in range(NUM_CHANNELS)]
            ranks.append(rank)
        return ranks

    def steps(self, channel: Channel, is_last: bool) -> list[Step]:
        """Return what a channel does in a tile."""
        key = (channel.rank.number, channel.number, is_last)
        if key not in self._made:
            self._made[key] = self._make_steps(channel, is_last)
        return self._made[key]

    def _make_steps(self, channel: Channel, is_last: bool) -> list[Step]:
        plan = self.plans[channel.rank.number]
        tiles, item_bytes = self._work.tiles, self._work.item_bytes
        tile = tiles.number - 1 if is_last else 0
        steps, ordinal = [], 0
        hazards = _hazards(plan.ops)
        lengths: dict[Chunk, int] = {}
        for index, op in enumerate(plan.ops):
            chunk = op.src or op.dst
            assert chunk is not None
            key = chunk._replace(scratch=None) if chunk.buffer is Buffer.DATA else chunk
            if key not in lengths:
                lengths[key] = tiles.elements(tile, chunk) * item_bytes
            num_bytes = lengths[key]
            if num_bytes:
                steps.append(self._step(channel, op, num_bytes, (ordinal, index, hazards[index])))
            ordinal += len(op.peers)
        return steps

    def _step(
        self, channel: Channel, op: Op, num_bytes: int, place: tuple[int, int, frozenset[int]]
    ) -> Step:
        mib = num_bytes / _MIB
        reduce_us = self._costs.reduce_us_per_mib * self._share + self._cold_us
        if op.kind is COPY:
            return Step(False, (), reduce_us * mib, self._memory_us(mib), *place)
        if op.kind is SEND:
            return Step(True, tuple(self._sent(channel, op, num_bytes)), 0.0, 0.0, *place)
        messages = tuple(self._taken(channel, peer, op, mib) for peer in op.peers)
        if op.kind is not RECV_REDUCE:
            return Step(False, messages, 0.0, 0.0, *place)
        reduced = mib * len(op.peers)
        result_us = self._costs.result_us_per_mib * self._share
        thread_us = reduce_us * reduced + result_us * mib
        return Step(False, messages, thread_us, self._memory_us(reduced), *place)

    def _byte_us(self, link: LinkCosts, is_local: bool) -> float:
        """Return what a MiB takes of a thread; the kernel's buffers between nodes are not warm."""
        return link.us_per_mib * (self._share if is_local else 1.0) + self._cold_us

    def _memory_us(self, mib: float) -> float:
        return self._costs.memory_us_per_mib * mib if self._uses_memory else 0.0

    def _link(self, one: int, other: int) -> tuple[LinkCosts, bool]:
        """Return what messages between two ranks cost, and whether these share a node."""
        is_local = self._fold.node(one) == self._fold.node(other)
        return (self._costs.scale_up if is_local else self._costs.scale_out), is_local

    def _sent(self, channel: Channel, op: Op, num_bytes: int) -> list[Message]:
        """Shared memory writes a payload once, for all its readers."""
        messages, is_written = [], False
        me, mib = channel.rank.number, num_bytes / _MIB
        for peer in op.peers:
            link, is_local = self._link(me, peer)
            moved = 0.0 if is_local and is_written else mib
            is_written |= is_local
            messages.append(
                Message(
                    link.message_us + self._byte_us(link, is_local) * moved,
                    self._memory_us(moved),
                    self._lane(me, peer, channel.number),
                    self._way(me, peer, mib),
                )
            )
        return messages

    def _taken(self, channel: Channel, peer: int, op: Op, mib: float) -> Message:
        """A reduction reads what shared memory holds where it is."""
        me = channel.rank.number
        link, is_local = self._link(me, peer)
        moved = 0.0 if is_local and op.kind is RECV_REDUCE else mib
        thread_us = link.message_us + self._byte_us(link, is_local) * moved
        return Message(thread_us, self._memory_us(moved), self._lane(peer, me, channel.number))

    def _lane(self, source: int, target: int, number: int) -> Lane:
        """Find the lane that stands for the one from `source` to `target`."""
        link, is_local = self._link(source, target)
        key = (*self._fold.lane(source, target), number)
        if key not in self._lanes:
            sender, receiver = self._simulated(source, target)
            self._lanes[key] = Lane(
                link.latency_us,
                _SHM_CAPACITY if is_local else _TCP_CAPACITY,
                sender.channels[number],
                receiver.channels[number],
            )
        return self._lanes[key]

    def _simulated(self, source: int, target: int) -> tuple[Rank, Rank]:
        """Find the ranks that stand for a sender and for a receiver."""
        fold, ranks = self._fold, self._by_number
        if fold.is_whole:
            return ranks[source], ranks[target]
        sender, receiver = (fold.moved(rank, fold.node(rank)) for rank in (source, target))
        return ranks[sender], ranks[receiver]

    def _way(self, source: int, target: int, mib: float) -> Way:
        link, _ = self._link(source, target)
        way: list[tuple[Wire, float]] = []
        if link.wire_us_per_mib:
            burst_us = link.burst_bytes / _MIB * link.wire_us_per_mib
            ends = self._ends(source, target, link.wiring)
            way = [(self._wire(end, burst_us), link.wire_us_per_mib * mib) for end in ends]
        here, there = self._fold.node(source), self._fold.node(target)
        gbit = self._topology.links_gbit.get((min(here, there), max(here, there)))
        if gbit is not None:
            slow = self._wire(("link", here, there), 0.0)
            way.append((slow, wire_us_per_mib(gbit) * mib))
        return tuple(way)

    def _ends(self, source: int, target: int, wiring: Wiring) -> list[object]:
        """Name the wires that a message leaves by and comes in by."""
        if wiring is Wiring.PAIR:
            return [(wiring, source, target)]
        owners = [rank.number for rank in self._simulated(source, target)]
        if wiring is Wiring.NODE:
            owners = [self._fold.node(rank) for rank in owners]
        return [(wiring, "out", owners[0]), (wiring, "in", owners[1])]

    def _wire(self, name: object, burst_us: float) -> Wire:
        if name not in self._wires:
            wire = self._wires[name] = Wire(burst_us)
            if self._work.num_calls > 1:  # those before have used the burst up
                wire.clear_at = burst_us
        return self._wires[name]


def _hazards(ops: Sequence[Op]) -> list[frozenset[int]]:
    """Find, for every op, the earlier sends whose source it overwrites.

    Scratch is the same memory in every tile, so a later send may be of the tile before.
    """
    sends: dict[tuple[object, int], set[int]] = {}
    for index, op in enumerate(ops):
        if op.kind is SEND and op.src is not None:
            for place in _places(op.src):
                sends.setdefault(place, set()).add(index)
    found: list[frozenset[int]] = []
    for index, op in enumerate(ops):
        if op.dst is None or not sends:
            found.append(frozenset())
            continue
        in_scratch = op.dst.scratch is not None
        overlapping = [sends.get(place, set()) for place in _places(op.dst)]
        found.append(
            frozenset(one for some in overlapping for one in some if in_scratch or one < index)
        )
    return found


def _places(chunk: Chunk) -> list[tuple[object, int]]:
    if chunk.scratch is not None:
        return [("scratch", slot) for slot in range(chunk.scratch, chunk.scratch + chunk.slots)]
    if chunk.buffer is Buffer.INPUT:
        return []
    return [(chunk.buffer, part) for part in range(chunk.begin, chunk.end)]


def averaged(tiles: Tiles) -> Tiles:
    """Return tiles that divide evenly: chunks of alike ranks may differ by an element."""
    full, last = (-(-size // tiles.parts) * tiles.parts for size in (tiles.full, tiles.last))
    return tiles._replace(full=full, last=last)
