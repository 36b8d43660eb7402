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

from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.lab.synthesis.packing import Tree
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
    collective: str, name: str, network: Network, trees: Sequence[Tree], root: int | None = None
) -> tuple[Plan, ...]:
    """Write the plans of all ranks: tree i carries chunk i of `data`, or the block of its root."""
    n = network.world_size
    contract, plans = COLLECTIVES[collective], list[Plan]()
    ordered = _ordered(network, trees)
    for rank in range(n):
        header = Plan(collective, name, rank, n, root)
        header = replace(header, shape=contract.shape(header, len(trees)))
        writer = _Writer(PlanBuilder(header, network.nodes), rank, trees)
        plans.append(writer.write(ordered))
    return tuple(plans)


def makespan(network: Network, trees: Sequence[Tree]) -> float:
    """Return the time until the last message has arrived, in chunks at 1 kbit/s.

    It is longer than the time of the busiest link, which is idle while the first and the last
    chunks cross other links.
    """
    return max(message.end for message in _ordered(network, trees))


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


def _ordered(network: Network, trees: Sequence[Tree]) -> list[_TreeMessage]:
    """Return all messages, in the order of their ends."""
    messages = _messages(trees)
    each = {arc: 1 / rate for arc, rate in network.kbit_per_s.items()}
    free = defaultdict[Arc, float](float)
    for message in messages:
        _find_way(message, network, each)
    ready, done = [one for one in messages if not one.needs], list[_TreeMessage]()
    while ready:

        def start(one: _TreeMessage) -> tuple[float, float]:
            route = network.routes[one.source, one.target]
            return max(one.begin, *(free[arc] for arc in route)), -one.way

        message = min(ready, key=start)
        ready.remove(message)
        message.begin, _ = start(message)
        route = network.routes[message.source, message.target]
        for arc in route:
            free[arc] = message.begin + each[arc]
        message.end = message.begin + max(each[arc] for arc in route)
        done.append(message)
        for one in message.needed_by:
            one.num_missing -= 1
            one.begin = max(one.begin, message.end)
            if not one.num_missing:
                ready.append(one)
    return sorted(done, key=lambda one: one.end)


def _find_way(message: _TreeMessage, network: Network, each: dict[Arc, float]) -> float:
    if not message.way:
        own = max(each[arc] for arc in network.routes[message.source, message.target])
        after = [_find_way(one, network, each) for one in message.needed_by]
        message.way = own + max(after, default=0.0)
    return message.way


class _Writer:
    """Writes the plan of a rank."""

    def __init__(self, plan: PlanBuilder, me: int, trees: Sequence[Tree]) -> None:
        self._plan, self._me, self._trees = plan, me, trees
        self._received: set[_TreeMessage] = set()
        self._touched: set[int] = set()  # chunks of which this rank has reduced a part
        self._is_blocks = False
        # Blocks whose partial results pass through this rank; each has a slot in scratch.
        self._passing = [
            chunk
            for chunk, tree in enumerate(trees)
            if me != tree.root and any(to == me != rank for rank, to in enumerate(tree.up))
        ]

    def write(self, ordered: Sequence[_TreeMessage]) -> Plan:
        me, plan = self._me, self._plan
        header = plan.finish()
        self._is_blocks = not header.shape.data_chunks
        if header.collective == "all_gather":
            plan.copy(output[me], input[0])
        sends = defaultdict[int, list[_TreeMessage]](list)
        for message in sorted(ordered, key=lambda one: one.begin):
            if message.source == me:
                sends[message.target].append(message)
        self._post(sends)
        for message in ordered:
            if message.target == me:
                self._receive(message)
                self._received.add(message)
                self._post(sends)
        return plan.finish()

    def _post(self, sends: dict[int, list[_TreeMessage]]) -> None:
        """Post the sends that have their data, in order of each lane; peers may share one op."""
        while True:
            firsts = [
                lane[0] for lane in sends.values() if lane and self._received >= {*lane[0].needs}
            ]
            if not firsts:
                return
            first = min(firsts, key=lambda one: one.begin)
            same = [one for one in firsts if (one.chunk, one.is_up) == (first.chunk, first.is_up)]
            for one in same:
                sends[one.target].pop(0)
            self._plan.send([one.target for one in same], self._place(first))

    def _receive(self, message: _TreeMessage) -> None:
        if not message.is_up:
            self._plan.recv(message.source, self._place(message))
            return
        mine = message.chunk not in self._touched
        self._touched.add(message.chunk)
        place = self._place(message)
        if self._is_blocks and mine:
            self._plan.copy(place, input[message.chunk])
        self._plan.recv_reduce([message.source], place)

    def _place(self, message: _TreeMessage) -> Chunk:
        """Return where this rank keeps the chunk of a message that it sends or receives."""
        if not self._is_blocks:
            return data[message.chunk]
        if not message.is_up:
            return output[self._trees[message.chunk].root]
        if self._trees[message.chunk].root == self._me:
            return output[0]
        if message.chunk not in self._touched:
            return input[message.chunk]
        slot = self._passing.index(message.chunk)
        return self._plan.scratch(slot, like=input[message.chunk])
