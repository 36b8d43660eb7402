"""Predicts the time of an algorithm from its plans: no formula per algorithm.

A rank is one thread, so a call takes at least the time of its messages, bytes and reductions; of
all ranks', if they share cores. The latency of every dependent round is added. `tuning.py` has the
numbers, `tuner.py` compares the costs.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import NamedTuple

from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import plan_for
from hccl_py.plan.language import Chunk, Nodes, OpKind, Plan

NUMBERS = (
    "scale_up_latency_us",
    "scale_up_message_us",
    "scale_up_us_per_mib",
    "scale_up_reduce_us_per_mib",
    "scale_out_latency_us",
    "scale_out_message_us",
    "scale_out_us_per_mib",
    "scale_out_reduce_us_per_mib",
)
"""Constants fitted for each class of link: per dependent round, per message, per byte sent or
received, and per received byte that is reduced. A local copy counts as a reduction within the
node."""

_MIB = 1 << 20
_TILE_BYTES = 128 << 10
# Limit of examined ranks times world size: about 10 ms per algorithm, once.
_MOST_EXAMINED = 2048

Row = tuple[float, ...]
"""A value for each of `NUMBERS`."""

Rounds = tuple[int, int]
"""Dependent rounds between nodes, then inside nodes; the former outweigh any number of the
latter."""


class RankWork(NamedTuple):
    """The work of one rank; the link classes are scale-up (0) and scale-out (1)."""

    messages: tuple[int, int]  # sent and received
    bytes: tuple[float, float]  # bytes of the messages, as a share of the call's bytes
    reduced: tuple[float, float]  # bytes reduced or copied here, as a share of the call's bytes


class Cost(NamedTuple):
    """An algorithm on some nodes, for any number of bytes."""

    rounds: Rounds
    widest: float  # bytes of the longest message, as a share of the call's bytes
    works: tuple[tuple[RankWork, int], ...]  # each with the number of ranks that have it

    def row(self, num_bytes: int, crowd: float, numbers: Row) -> Row:
        """Return the coefficient of each number; the call's time is the product with `numbers`.

        Args:
            num_bytes: size of the call, as in `tuner.choose`.
            crowd: ranks per core, at least 1.
            numbers: decide whether the busiest rank limits the call or, if ranks share cores, the
                work of all.
        """
        tiles = max(1.0, self.widest * num_bytes / _TILE_BYTES)
        rows = [(_work_row(work, num_bytes, tiles), ranks) for work, ranks in self.works]
        busiest = max((row for row, _ in rows), key=lambda row: product(row, numbers))
        total = sum(ranks for _, ranks in rows)
        columns = zip(*([x * ranks / total for x in row] for row, ranks in rows), strict=True)
        shared = tuple(crowd * sum(column) for column in columns)
        up, out = (count * crowd * (1 + tiles) / 2 for count in reversed(self.rounds))
        row = max(busiest, shared, key=lambda row: product(row, numbers))
        return (up, *row[1:4], out, *row[5:])


def product(row: Row, numbers: Row) -> float:
    """Multiply a row with the numbers: microseconds."""
    return sum(x * number for x, number in zip(row, numbers, strict=True))


@lru_cache(maxsize=512)
def cost_of(collective: str, algorithm: str, nodes: Nodes, root: int | None) -> Cost | None:
    """Examine an algorithm: the plans of all ranks, or of a few ranks of a large world.

    None: examining even one plan takes too long for a first call.
    """
    n = count_ranks(nodes)
    one_of_each_size = {len(node): node[0] for node in nodes}
    # In a tree with this root the longest chains end at its last rank and at the root.
    first = [*one_of_each_size.values(), root or 0, ((root or 0) - 1) % n]
    most = min(n, _MOST_EXAMINED // n)
    write = partial(plan_for, collective, algorithm, nodes=nodes, root=root)
    return cost_of_plans(_examined(write, range(n) if most == n else first, most), nodes)


def cost_of_plans(plans: Mapping[int, Plan], nodes: Nodes) -> Cost | None:
    """Examine the plans of some ranks; the others are assumed to run in step."""
    if not plans:
        return None
    node_of = {rank: index for index, node in enumerate(nodes) for rank in node}
    works = Counter(_work(plan, node_of) for plan in plans.values())
    sent = [share_of(plan, op.src) for plan in plans.values() for op in plan.ops if op.peers]
    return Cost(_rounds(plans, node_of), max(sent, default=0.0), tuple(works.items()))


def _work_row(work: RankWork, num_bytes: int, tiles: float) -> Row:
    mib = num_bytes / _MIB
    up, out = (
        (messages * tiles, moved * mib, reduced * mib)
        for messages, moved, reduced in zip(*work, strict=True)
    )
    return (0.0, *up, 0.0, *out)


def share_of(plan: Plan, chunk: Chunk | None) -> float:
    """Return a chunk's share of the call's bytes."""
    if chunk is None:
        return 0.0
    shape = plan.shape
    whole = shape.data_chunks or plan.world_size * shape.block_parts
    return (chunk.end - chunk.begin) / whole


def _work(plan: Plan, node_of: Mapping[int, int]) -> RankWork:
    messages, moved, reduced = [0, 0], [0.0, 0.0], [0.0, 0.0]
    for op in plan.ops:
        share = share_of(plan, op.src or op.dst)
        remote = sum(node_of[peer] != node_of[plan.rank] for peer in op.peers)
        local = len(op.peers) - remote
        messages[0] += local
        messages[1] += remote
        moved[1] += share * remote
        if op.kind is OpKind.COPY:
            reduced[0] += share
        elif op.kind is OpKind.RECV_REDUCE:  # reads shared memory in place
            reduced[0] += share * local
            reduced[1] += share * remote
        elif local:  # one payload in shared memory serves all readers
            moved[0] += share
    return RankWork((messages[0], messages[1]), (moved[0], moved[1]), (reduced[0], reduced[1]))


def _examined(write: Callable[[int], Plan], first: Iterable[int], most: int) -> dict[int, Plan]:
    """Write the plans of the first ranks, and of the ranks that their sends depend on."""
    plans: dict[int, Plan] = {}
    waiting = list(first)
    while waiting and len(plans) < most:
        rank = waiting.pop()
        if rank not in plans:
            plans[rank] = write(rank)
            for op in plans[rank].ops:
                if op.kind is OpKind.SEND:
                    break
                waiting += op.peers
    return plans


def _rounds(plans: Mapping[int, Plan], node_of: Mapping[int, int]) -> Rounds:
    """Count the rounds of the longest chain of messages that wait for one another."""
    lanes: defaultdict[tuple[int, int], deque[Rounds]] = defaultdict(deque)
    at, sent = dict.fromkeys(plans, 0), dict.fromkeys(plans, (0, 0))
    now = dict(sent)

    def after(rounds: Rounds, one: int, other: int) -> Rounds:
        out, up = rounds
        return (out, up + 1) if node_of[one] == node_of[other] else (out + 1, up)

    def step(rank: int) -> bool:
        ops = plans[rank].ops
        if at[rank] == len(ops):
            return False
        op = ops[at[rank]]
        if op.kind is OpKind.SEND:
            sent[rank] = now[rank]
            for peer in op.peers:
                lanes[rank, peer].append(after(now[rank], rank, peer))
        else:
            if any(peer in plans and not lanes[peer, rank] for peer in op.peers):
                return False
            for peer in op.peers:
                # A rank that is not examined is assumed to send when this one does.
                known = lanes[peer, rank].popleft() if peer in plans else None
                now[rank] = max(now[rank], known or after(sent[rank], peer, rank))
        at[rank] += 1
        return True

    moving = True
    while moving:
        moving = False
        for rank in plans:
            while step(rank):
                moving = True
    return max(now.values())
