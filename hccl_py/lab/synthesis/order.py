"""Trees as plans: the order in which each rank sends and receives.

An op blocks its channel, so a rank has to receive messages in the order in which they arrive. This
order is simulated: a message starts when its sender has the data and all links of its route are
free; of several, the one with the longest remaining time of its chunk starts first. Ranks receive
in the order of the ends. A rank posts a send as soon as it has the data, because a send runs in the
background; messages of a pair keep their order.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.lab.synthesis.packing import Tree
from hccl_py.lab.synthesis.symmetry import Symmetry
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Chunk, Plan, PlanBuilder, data, input, output


@dataclass(eq=False)
class _TreeMessage:
    chunk: int
    source: int
    target: int
    is_up: bool
    needs: list["_TreeMessage"]  # messages that the source must have received before
    way: float = 0.0  # time from its start to the end of the last message that needs it
    begin: float = 0.0
    end: float = 0.0
    num_missing: int = 0
    needed_by: list["_TreeMessage"] = field(default_factory=list)


def plans_of(
    collective: str,
    name: str,
    network: Network,
    trees: Sequence[Tree],
    root: int | None = None,
    symmetry: Symmetry | None = None,
    turned: bool = False,
) -> tuple[Plan, ...]:
    """Write the plans of all ranks: tree i carries chunk i of `data`, or of all blocks.

    A block is cut into as many parts as there are trees of its root, one after the other. With a
    symmetry these are the trees of its roots. Its moves take them to all ranks, whose number is the
    order of their chunks. `turned`: messages are in the reverse of the order that the opposite
    messages have, which may serve reductions better.
    """
    n = network.world_size
    contract, plans = COLLECTIVES[collective], list[Plan]()
    num_chunks = len(trees) * (1 if symmetry is None else len(symmetry.moves))
    ordered, places = _ordered(network, trees, symmetry, turned), _Places(n, trees, symmetry)
    for rank in range(n):
        header = Plan(collective, name, rank, n, root)
        chunks = num_chunks if contract.blocks is None else num_chunks // n
        header = replace(header, shape=contract.shape(header, chunks))
        writer = _Writer(PlanBuilder(header, network.nodes), rank, trees, places)
        plans.append(writer.write(ordered))
    return tuple(plans)


class _Places:
    """The place of each rank in each tree: its own, or with moves that from which it is moved."""

    def __init__(self, n: int, trees: Sequence[Tree], symmetry: Symmetry | None) -> None:
        self._trees, self._parts = trees, 0
        self._moves: npt.NDArray[np.int32] = np.arange(n, dtype=np.int32)[None]
        if symmetry is not None:
            self._moves, self._parts = symmetry.moves, len(trees) // len(symmetry.roots)
        # By place and rank, the move from one to the other.
        self._move = np.full((n, n), -1)
        for number, move in enumerate(self._moves):
            self._move[np.arange(n), move] = number

    def has(self, rank: int, place: int) -> bool:
        """Return whether a move takes a place to a rank."""
        return bool(self._move[place, rank] >= 0)

    def other(self, rank: int, place: int, other: int) -> int:
        """Return the rank in another place of a tree in which `rank` has `place`."""
        return int(self._moves[self._move[place, rank], other])

    def chunk(self, rank: int, place: int, tree: int) -> int:
        """Return the chunk of a tree in which `rank` has `place`."""
        if not self._parts:
            return tree
        root = self.other(rank, place, self._trees[tree].root)
        return root * self._parts + tree % self._parts


def makespan(network: Network, trees: Sequence[Tree]) -> float:
    """Return the time until the last message has arrived, in chunks at 1 kbit/s.

    It is longer than the time of the busiest link, which is idle while the first and the last
    chunks cross other links.
    """
    return max(message.end for message in _ordered(network, trees, None, turned=False))


def _messages(trees: Sequence[Tree]) -> list[_TreeMessage]:
    found: list[_TreeMessage] = []
    for chunk, tree in enumerate(trees):
        into = defaultdict[int, list[_TreeMessage]](list)
        up = {
            rank: _TreeMessage(chunk, rank, to, True, into[rank])
            for rank, to in enumerate(tree.up)
            if to != rank
        }
        for message in up.values():
            into[message.target].append(message)
        down = {
            rank: _TreeMessage(chunk, source, rank, False, [])
            for rank, source in enumerate(tree.down)
            if source != rank
        }
        for message in down.values():
            before = down.get(message.source)
            message.needs = into[tree.root] if before is None else [before]
        found += [*up.values(), *down.values()]
    for message in found:
        message.num_missing = len(message.needs)
        for one in message.needs:
            one.needed_by.append(message)
    return found


def _ordered(
    network: Network, trees: Sequence[Tree], symmetry: Symmetry | None, turned: bool
) -> list[_TreeMessage]:
    """Return all messages, in the order of their ends.

    With a symmetry, links that are alike are one, which takes the messages of all moves in turn.
    `turned`: the order is that of the opposite messages, in reversed time.
    """
    messages = _messages(trees)
    if turned:
        _turn(messages)
    each = {arc: 1 / rate for arc, rate in network.kbit_per_s.items()}
    kind = {arc: arc for arc in each}
    if symmetry is not None:
        kind, num_moves = symmetry.kind_of, len(symmetry.moves)
        each = {arc: time * num_moves / symmetry.num_alike[kind[arc]] for arc, time in each.items()}
    free = defaultdict[Arc, float](float)
    for message in messages:
        _find_way(message, network, each)
    ready, done = [one for one in messages if not one.needs], list[_TreeMessage]()
    while ready:

        def start(one: _TreeMessage) -> tuple[float, float]:
            route = network.routes[one.source, one.target]
            return max(one.begin, *(free[kind[arc]] for arc in route)), -one.way

        message = min(ready, key=start)
        ready.remove(message)
        message.begin, _ = start(message)
        route = network.routes[message.source, message.target]
        for arc in route:
            free[kind[arc]] = message.begin + each[arc]
        message.end = message.begin + max(each[arc] for arc in route)
        done.append(message)
        for one in message.needed_by:
            one.num_missing -= 1
            one.begin = max(one.begin, message.end)
            if not one.num_missing:
                ready.append(one)
    if turned:
        _turn(messages)
        last = max(one.end for one in messages)
        for message in messages:
            message.begin, message.end = last - message.end, last - message.begin
    return sorted(done, key=lambda one: one.end)


def _turn(messages: Sequence[_TreeMessage]) -> None:
    for one in messages:
        one.needs, one.needed_by = one.needed_by, one.needs
        one.num_missing = len(one.needs)


def _find_way(message: _TreeMessage, network: Network, each: dict[Arc, float]) -> float:
    if not message.way:
        own = max(each[arc] for arc in network.routes[message.source, message.target])
        after = [_find_way(one, network, each) for one in message.needed_by]
        message.way = own + max(after, default=0.0)
    return message.way


class _Writer:
    """Writes the plan of a rank."""

    def __init__(self, plan: PlanBuilder, me: int, trees: Sequence[Tree], places: _Places) -> None:
        self._plan, self._me, self._trees, self._places = plan, me, trees, places
        self._received: set[_TreeMessage] = set()
        self._is_blocks, self._parts = False, 1
        # By chunk of which this rank has reduced a part, where that is.
        self._partial: dict[int, Chunk] = {}
        self._num_slots = 0

    def write(self, ordered: Sequence[_TreeMessage]) -> Plan:
        me, plan = self._me, self._plan
        header = plan.finish()
        self._is_blocks, self._parts = not header.shape.data_chunks, header.shape.block_parts
        for part in range(self._parts if header.collective == "all_gather" else 0):
            plan.copy(output[me * self._parts + part], input[part])
        sends = defaultdict[int, list[_TreeMessage]](list)
        # A lane has the order of the receives at its other end.
        for message in (one for one in ordered if self._places.has(me, one.source)):
            sends[self._places.other(me, message.source, message.target)].append(message)
        self._post(sends)
        for message in (one for one in ordered if self._places.has(me, one.target)):
            self._receive(message)
            self._received.add(message)
            self._post(sends)
        return plan.finish()

    def _post(self, sends: dict[int, list[_TreeMessage]]) -> None:
        """Post the sends that have their data, in order of each lane; peers may share one op."""
        while True:
            firsts = {
                peer: lane[0]
                for peer, lane in sends.items()
                if lane and self._received >= {*lane[0].needs}
            }
            if not firsts:
                return
            first = min(firsts.values(), key=lambda one: one.begin)
            place = self._place(first, first.source)
            same = [
                peer
                for peer, one in firsts.items()
                if (one.chunk, one.is_up, one.source) == (first.chunk, first.is_up, first.source)
            ]
            for peer in same:
                sends[peer].pop(0)
            self._plan.send(same, place)

    def _receive(self, message: _TreeMessage) -> None:
        source = self._places.other(self._me, message.target, message.source)
        place = self._place(message, message.target)
        if not message.is_up:
            self._plan.recv(source, place)
            return
        chunk = self._places.chunk(self._me, message.target, message.chunk)
        if self._is_blocks and chunk not in self._partial:
            if message.target == self._trees[message.chunk].root:
                place = output[chunk % self._parts]
            else:
                place = self._plan.scratch(self._num_slots, like=input[chunk])
                self._num_slots += 1
            self._partial[chunk] = place
            self._plan.copy(place, input[chunk])
        self._plan.recv_reduce([source], place)

    def _place(self, message: _TreeMessage, place: int) -> Chunk:
        """Return where this rank, at a place of the tree, keeps the chunk of a message."""
        chunk = self._places.chunk(self._me, place, message.chunk)
        if not self._is_blocks:
            return data[chunk]
        return self._partial.get(chunk, input[chunk]) if message.is_up else output[chunk]
