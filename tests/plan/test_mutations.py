"""Valid plans, broken in every way of every kind listed here: `verify` must reject each one.

A mutation may be harmless. Which ones are is decided by `Oracle`, which shares no code with
`verify` and never runs a plan: it compares which op feeds which, and looks for a cycle of waiting.
`verify` must accept exactly what the oracle allows, so the oracle's rule is itself under test.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

import pytest

from hccl_py.algorithms import ALGORITHMS, plans_for
from hccl_py.algorithms.topology import Topology
from hccl_py.plan import Chunk, Op, OpKind, Plan, PlanError, verify
from hccl_py.plan.contracts import COLLECTIVES

RECEIVES = (OpKind.RECV, OpKind.RECV_REDUCE)
Ranks = tuple[tuple[Op, ...], ...]
"""The ops of every rank."""

Event = tuple[str | int, ...]
"""An op being done, or a message entering its lane."""

TOPOLOGIES = {
    "2": Topology.one_node(2),
    "4": Topology.one_node(4),
    "2+3": Topology(((0, 1), (2, 3, 4))),
}
CASES = [
    pytest.param(collective, name, topology, id=f"{collective}-{name}-{ranks}")
    for collective, name in ALGORITHMS
    for ranks, topology in TOPOLOGIES.items()
]
each_case = pytest.mark.parametrize(("collective", "name", "topology"), CASES)


# --- the oracle ---------------------------------------------------------------------------------


def places(chunk: Chunk | None) -> set[tuple[object, int]]:
    if chunk is None:
        return set()
    if chunk.scratch is not None:
        return {("scratch", chunk.scratch)}
    return {(chunk.buffer, index) for index in range(chunk.begin, chunk.end)}


def numbered(ops: tuple[Op, ...]) -> list[tuple[Op, int]]:
    """Tell equal ops apart by counting them."""
    seen: Counter[Op] = Counter()
    result = []
    for op in ops:
        result.append((op, seen[op]))
        seen[op] += 1
    return result


def messages(ranks: Ranks) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pair rank and index of every send with those of its receive, lane by lane in order."""
    got: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank, index, op in positions(ranks):
        for peer in op.peers if op.kind in RECEIVES else ():
            got[peer, rank].append((rank, index))
    for rank, index, op in positions(ranks):
        for peer in op.peers if op.kind is OpKind.SEND else ():
            yield (rank, index), got[rank, peer].pop(0)


def waiting_graph(ranks: Ranks) -> dict[Event, set[Event]]:
    """Draw what every event waits for: an op being done, a message entering its lane."""
    graph: dict[Event, set[Event]] = {}
    sent: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    got: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for rank, ops in enumerate(ranks):
        for index, op in enumerate(ops):
            done: Event = ("done", rank, index)
            graph[done] = {("done", rank, index - 1)} if index else set()
            for peer in op.peers:
                if op.kind is OpKind.SEND:
                    enter: Event = ("enter", rank, index, peer)
                    graph[enter] = {done}
                    sent[rank, peer].append(enter)
                else:
                    got[peer, rank].append(done)
            for earlier, send in enumerate(ops[:index]):
                if send.kind is OpKind.SEND and places(send.src) & places(op.dst):
                    graph[done] |= {("enter", rank, earlier, peer) for peer in send.peers}
    for lane, entries in sent.items():
        for position, enter in enumerate(entries):
            graph[got[lane][position]].add(enter)
            if position:
                graph[enter] |= {entries[position - 1], got[lane][position - 1]}
    return graph


def everyone_heard(ranks: Ranks, graph: dict[Event, set[Event]]) -> bool:
    """Tell whether the first op of every rank comes before the last op of every rank."""
    for rank, ops in enumerate(ranks):
        reached, front = set[Event](), list[Event]()
        front.append(("done", rank, len(ops) - 1))
        while front:
            event = front.pop()
            if event not in reached:
                reached.add(event)
                front.extend(graph[event])
        if not all(("done", other, 0) in reached for other in range(len(ranks))):
            return False
    return True


class Oracle:
    """Decides whether mutated plans do the same as the valid plans they come from.

    They do if each rank has the same ops as before, each message still joins the same two ops, ops
    of one rank that touch the same memory (one of them writing) keep their order, and no cycle of
    waiting arises. Two refinements:

    - Reductions into the same chunk may trade places where the result is promised on one rank, or
      is made on one rank and copied by all others: only the bits then depend on the order.
    - In a barrier no value matters, but every rank must hear from every rank; that is a path in the
      graph of waiting.
    """

    def __init__(self, collective: str, ranks: Ranks) -> None:
        self.ranks = ranks
        self.meets = COLLECTIVES[collective].meets
        self.links = self._links(ranks)
        finishers: Counter[tuple[object, int]] = Counter()
        for ops in ranks:
            last = {place: op.kind for op in ops for place in places(op.dst)}
            finishers.update(at for at, kind in last.items() if kind is OpKind.RECV_REDUCE)
        self.reductions_commute = collective != "all_reduce" or max(finishers.values()) == 1

    def allows(self, mutated: Ranks) -> bool:
        pairs = list(zip(self.ranks, mutated, strict=True))
        if any(Counter(before) != Counter(after) for before, after in pairs):
            return False
        if self._links(mutated) != self.links:
            return False
        if not self.meets and not all(self._keeps_order(before, after) for before, after in pairs):
            return False
        graph = waiting_graph(mutated)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError:
            return False
        return not self.meets or everyone_heard(mutated, graph)

    def _links(self, ranks: Ranks) -> set[object]:
        names = [numbered(ops) for ops in ranks]
        return {
            (source, names[source][sent], target, names[target][got])
            for (source, sent), (target, got) in messages(ranks)
        }

    def _keeps_order(self, before: tuple[Op, ...], after: tuple[Op, ...]) -> bool:
        if before == after:
            return True
        at = {op: index for index, op in enumerate(numbered(after))}
        return all(
            at[a] < at[b]
            for a, b in combinations(numbered(before), 2)
            if self._share_memory(a[0], b[0])
        )

    def _share_memory(self, a: Op, b: Op) -> bool:
        if self.reductions_commute and a.kind is b.kind is OpKind.RECV_REDUCE:
            return False
        return bool(
            places(a.dst) & (places(b.src) | places(b.dst)) or places(b.dst) & places(a.src)
        )


# --- the mutations ------------------------------------------------------------------------------


def positions(ranks: Ranks) -> Iterator[tuple[int, int, Op]]:
    for rank, ops in enumerate(ranks):
        for index, op in enumerate(ops):
            yield rank, index, op


def spliced(ranks: Ranks, rank: int, begin: int, end: int, *ops: Op) -> Ranks:
    """Put `ops` in the place of ops begin..end of a rank."""
    row = ranks[rank]
    return (*ranks[:rank], (*row[:begin], *ops, *row[end:]), *ranks[rank + 1 :])


def drop_op(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, _ in positions(ranks):
        yield spliced(ranks, rank, index, index + 1)


def drop_peer(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        for peer in op.peers if len(op.peers) > 1 else ():
            fewer = replace(op, peers=tuple(other for other in op.peers if other != peer))
            yield spliced(ranks, rank, index, index + 1, fewer)


def duplicate_op(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        if op.kind is not OpKind.COPY:
            yield spliced(ranks, rank, index, index, op)


def replace_peer(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        for peer in op.peers:
            for other in set(range(len(ranks))) - {peer, rank}:
                peers = tuple(other if p == peer else p for p in op.peers)
                if op.kind is OpKind.RECV_REDUCE:
                    peers = tuple(sorted(peers))
                yield spliced(ranks, rank, index, index + 1, replace(op, peers=peers))


def exchange_peers(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        for later, other in enumerate(ranks[rank][index + 1 :], start=index + 1):
            if op.kind is other.kind and op.peers != other.peers:
                first = spliced(ranks, rank, index, index + 1, replace(op, peers=other.peers))
                yield spliced(first, rank, later, later + 1, replace(other, peers=op.peers))


def replace_kind(ranks: Ranks) -> Iterator[Ranks]:
    swapped = {OpKind.RECV: OpKind.RECV_REDUCE, OpKind.RECV_REDUCE: OpKind.RECV}
    for rank, index, op in positions(ranks):
        if op.kind in swapped and len(op.peers) == 1:
            yield spliced(ranks, rank, index, index + 1, replace(op, kind=swapped[op.kind]))


def swap_adjacent(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        if index and op != ranks[rank][index - 1]:
            yield spliced(ranks, rank, index - 1, index + 1, op, ranks[rank][index - 1])


def swap_adjacent_everywhere(ranks: Ranks) -> Iterator[Ranks]:
    for index in range(1, max(map(len, ranks))):
        mutated = ranks
        for rank, ops in enumerate(ranks):
            if index < len(ops):
                mutated = spliced(mutated, rank, index - 1, index + 1, ops[index], ops[index - 1])
        yield mutated


def receive_first(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        if op.kind in RECEIVES and index:
            yield spliced(ranks, rank, 0, index + 1, op, *ranks[rank][:index])


def receives_first_everywhere(ranks: Ranks) -> Iterator[Ranks]:
    mutated = tuple(tuple(sorted(ops, key=lambda op: op.kind not in RECEIVES)) for ops in ranks)
    if mutated != ranks:
        yield mutated


def send_last(ranks: Ranks) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        if op.kind is OpKind.SEND and index + 1 < len(ranks[rank]):
            rest = ranks[rank][index + 1 :]
            yield spliced(ranks, rank, index, len(ranks[rank]), *rest, op)


def other_chunks(plan: Plan, chunk: Chunk) -> list[Chunk]:
    """List the chunks of equal span elsewhere in the buffer, and the other scratch slots."""
    parts, span = plan.shape.parts(chunk.buffer), chunk.end - chunk.begin
    moved = [
        replace(chunk, begin=begin, end=begin + span)
        for begin in range(parts - span + 1)
        if begin != chunk.begin
    ]
    if chunk.scratch is None:
        return [*moved, replace(chunk, scratch=0)]
    return [*moved, replace(chunk, scratch=None), replace(chunk, scratch=1 - chunk.scratch)]


def replace_chunk(ranks: Ranks, plans: tuple[Plan, ...]) -> Iterator[Ranks]:
    for rank, index, op in positions(ranks):
        for side in ("dst", "src"):
            chunk: Chunk | None = getattr(op, side)
            for other in other_chunks(plans[rank], chunk) if chunk else ():
                moved = replace(op, dst=other) if side == "dst" else replace(op, src=other)
                yield spliced(ranks, rank, index, index + 1, moved)


def move_message(ranks: Ranks, plans: tuple[Plan, ...]) -> Iterator[Ranks]:
    """Send another chunk, and receive it as that: both ends agree, and both are wrong."""
    for (source, sent), (target, got) in messages(ranks):
        send, receive = ranks[source][sent], ranks[target][got]
        if len(send.peers) == len(receive.peers) == 1 and send.src and receive.dst:
            theirs = other_chunks(plans[target], receive.dst)
            for chunk in other_chunks(plans[source], send.src):
                for landing in theirs:
                    first = spliced(ranks, source, sent, sent + 1, replace(send, src=chunk))
                    yield spliced(first, target, got, got + 1, replace(receive, dst=landing))


def count_twice(ranks: Ranks) -> Iterator[Ranks]:
    """Send a contribution once more, and reduce it once more."""
    for (source, sent), (target, got) in messages(ranks):
        send, receive = ranks[source][sent], ranks[target][got]
        if receive.kind is OpKind.RECV_REDUCE:
            first = spliced(ranks, source, sent + 1, sent + 1, replace(send, peers=(target,)))
            yield spliced(first, target, got + 1, got + 1, replace(receive, peers=(source,)))


KINDS = (
    *(drop_op, drop_peer, duplicate_op, count_twice, replace_peer, exchange_peers),
    *(swap_adjacent, swap_adjacent_everywhere, receive_first, receives_first_everywhere, send_last),
)


# --- the tests ----------------------------------------------------------------------------------


def plans_of(collective: str, name: str, topology: Topology) -> tuple[Plan, ...]:
    root = topology.world_size - 1 if COLLECTIVES[collective].rooted else None
    return plans_for(collective, name, topology, root)


def accepts(collective: str, plans: tuple[Plan, ...], ranks: Ranks) -> bool:
    mutated = [replace(plan, ops=ops) for plan, ops in zip(plans, ranks, strict=True)]
    try:
        verify(mutated, COLLECTIVES[collective])
    except PlanError as error:
        assert 0 <= error.rank < len(plans)
        return False
    return True


@each_case
def test_mutation_is_accepted_only_where_the_oracle_allows_it(
    collective: str, name: str, topology: Topology
) -> None:
    plans = plans_of(collective, name, topology)
    ranks = tuple(plan.ops for plan in plans)
    oracle = Oracle(collective, ranks)
    assert accepts(collective, plans, ranks) and oracle.allows(ranks)
    mutations = [(kind.__name__, mutated) for kind in KINDS for mutated in kind(ranks)]
    if not oracle.meets:  # in a barrier, where no value matters, kind and chunk do not either
        mutations += [("replace_kind", mutated) for mutated in replace_kind(ranks)]
        mutations += [("replace_chunk", mutated) for mutated in replace_chunk(ranks, plans)]
        mutations += [("move_message", mutated) for mutated in move_message(ranks, plans)]
    assert mutations
    for kind, mutated in mutations:
        accepted = accepts(collective, plans, mutated)
        assert accepted == oracle.allows(mutated), difference(kind, ranks, mutated)


def difference(kind: str, ranks: Ranks, mutated: Ranks) -> str:
    lines = [
        f"rank {rank}\n  was {'; '.join(map(str, before))}\n  now {'; '.join(map(str, after))}"
        for rank, (before, after) in enumerate(zip(ranks, mutated, strict=True))
        if before != after
    ]
    return "\n".join([kind, *lines])


@each_case
def test_copy_done_twice_in_a_row_changes_nothing(
    collective: str, name: str, topology: Topology
) -> None:
    """The one op that `duplicate_op` leaves out."""
    plans = plans_of(collective, name, topology)
    ranks = tuple(plan.ops for plan in plans)
    for rank, index, op in positions(ranks):
        if op.kind is OpKind.COPY:
            assert accepts(collective, plans, spliced(ranks, rank, index, index, op))


def test_ring_that_receives_before_it_sends_is_a_deadlock() -> None:
    plans = plans_of("all_reduce", "ring", TOPOLOGIES["4"])
    ranks = tuple(plan.ops for plan in plans)
    cyclic = next(swap_adjacent_everywhere(ranks))
    mutated = [replace(plan, ops=ops) for plan, ops in zip(plans, cyclic, strict=True)]
    with pytest.raises(PlanError, match="deadlock.*\n.*rank 0, op 0 .* waits for a message"):
        verify(mutated, COLLECTIVES["all_reduce"])


def test_one_early_receive_in_a_ring_is_harmless() -> None:
    """The oracle would prove little if it never allowed anything."""
    plans = plans_of("all_reduce", "ring", TOPOLOGIES["4"])
    ranks = tuple(plan.ops for plan in plans)
    early = next(swap_adjacent(ranks))
    assert Oracle("all_reduce", ranks).allows(early)
    assert accepts("all_reduce", plans, early)
