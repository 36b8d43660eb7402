"""Trees for a network that looks the same from each rank: one tree, moved to every root.

A ring, a torus or a hypercube without switches is mapped to itself by moves: ranks are points of a
grid, and a move adds a point to each, or they are numbers, and a move is XOR. Links that a move
maps to one another are alike, and all moved trees together load them equally. So a tree that takes
each kind of link as often as any other fills the network, and it may be as flat as the distances
allow. This takes no search, so it works for hundreds of ranks.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Chunk, Plan, PlanBuilder, data, input, output

MOVED = ("all_reduce", "all_gather", "reduce_scatter")
"""The collectives that such trees carry out: each rank is the root of one."""


@dataclass(frozen=True)
class MovedTree:
    """A tree from rank 0, and its moves.

    Attributes:
        moves: by rank, where the move that takes rank 0 there takes each rank.
        levels: the links of the tree by distance from rank 0.
    """

    moves: Sequence[Sequence[int]]
    levels: Sequence[Sequence[Arc]]


def moved_tree(network: Network) -> MovedTree | None:
    """Return the tree; None: the network has switches or does not look alike from each rank."""
    if len(network.names) > network.world_size:
        return None
    for moves in _candidates(network.world_size):
        rates = network.kbit_per_s
        if all(
            rates.get((move[tail], move[head])) == rate
            for move in moves[1:]
            for (tail, head), rate in rates.items()
        ):
            return MovedTree(moves, _levels(network, moves))
    return None


def _candidates(n: int) -> Iterator[list[list[int]]]:
    """Yield the moves of each grid of n points, then XOR."""
    for sides in _grids(n):
        points = list(product(*map(range, sides)))
        number = {point: at for at, point in enumerate(points)}
        yield [
            [
                number[tuple((a + b) % side for a, b, side in zip(by, one, sides, strict=True))]
                for one in points
            ]
            for by in points
        ]
    if n & (n - 1) == 0:
        yield [[by ^ one for one in range(n)] for by in range(n)]


def _grids(n: int) -> Iterator[tuple[int, ...]]:
    yield (n,)
    for side in range(2, n // 2 + 1):
        if n % side == 0:
            yield from ((side, *rest) for rest in _grids(n // side))


def _levels(network: Network, moves: Sequence[Sequence[int]]) -> list[list[Arc]]:
    """Choose a nearest parent of each rank so that each kind of link is taken equally often."""
    heads: dict[int, list[int]] = {}
    for tail, head in network.kbit_per_s:
        heads.setdefault(tail, []).append(head)
    far, queue = {0: 0}, deque([0])
    while queue:
        for head in heads.get(here := queue.popleft(), ()):
            if head not in far:
                far[head] = far[here] + 1
                queue.append(head)
    back = [{there: at for at, there in enumerate(move)} for move in moves]
    ways = {rank: dict[int, int]() for rank in far if rank}  # by kind of link, the parent
    for tail, head in sorted(network.kbit_per_s):
        if head and far[head] == far[tail] + 1:
            ways[head].setdefault(back[tail][head], tail)
    taken: dict[int, set[int]] = {kind: set() for kind in heads[0]}
    for rank, kinds in ways.items():
        _take(taken, rank, min(kinds, key=lambda kind: len(taken[kind])))
    while _improve(network, ways, taken):
        pass
    levels: list[list[Arc]] = [[] for _ in range(max(far.values()))]
    for kind, ranks in taken.items():
        for rank in ranks:
            levels[far[rank] - 1].append((ways[rank][kind], rank))
    return [sorted(level) for level in levels]


def _take(taken: dict[int, set[int]], rank: int, kind: int) -> None:
    for ranks in taken.values():
        ranks.discard(rank)
    taken[kind].add(rank)


def _improve(network: Network, ways: dict[int, dict[int, int]], taken: dict[int, set[int]]) -> bool:
    """Move ranks along a chain of kinds, from the most loaded one to one with less load."""

    def load(kind: int, more: int = 0) -> float:
        return (len(taken[kind]) + more) / network.kbit_per_s[0, kind]

    first = max(taken, key=load)
    came: dict[int, tuple[int, int] | None] = {first: None}
    queue = deque([first])
    while queue:
        kind = queue.popleft()
        if load(kind, 1) < load(first):
            while (step := came[kind]) is not None:
                rank, before = step
                _take(taken, rank, kind)
                kind = before
            return True
        for rank in sorted(taken[kind]):
            for other in ways[rank]:
                if other not in came:
                    came[other] = rank, kind
                    queue.append(other)
    return False


def moved_plans(collective: str, name: str, network: Network, tree: MovedTree) -> tuple[Plan, ...]:
    """Write the plans of all ranks, level by level."""
    n, found = network.world_size, list[Plan]()
    # By place and rank, the root.
    root_of = [[0] * n for _ in range(n)]
    for root, move in enumerate(tree.moves):
        for place, rank in enumerate(move):
            root_of[place][rank] = root
    for rank in range(n):
        header = Plan(collective, name, rank, n)
        header = replace(header, shape=COLLECTIVES[collective].shape(header, n))
        plan = PlanBuilder(header, network.nodes)
        if collective != "all_gather":
            _reduce(plan, collective, rank, tree, root_of)
        if collective != "reduce_scatter":
            _spread(plan, collective, rank, tree, root_of)
        found.append(plan.finish())
    return tuple(found)


def _spread(
    plan: PlanBuilder, collective: str, me: int, tree: MovedTree, root_of: list[list[int]]
) -> None:
    buffer = output if collective == "all_gather" else data
    if collective == "all_gather":
        plan.copy(output[me], input[0])
    for level in tree.levels:
        for tail, head in level:
            root = root_of[tail][me]
            plan.send([tree.moves[root][head]], buffer[root])
        for tail, head in level:
            root = root_of[head][me]
            plan.recv(tree.moves[root][tail], buffer[root])


def _reduce(
    plan: PlanBuilder, collective: str, me: int, tree: MovedTree, root_of: list[list[int]]
) -> None:
    slots: dict[int, Chunk] = {}  # by root, where the sum of a passing block is

    def place(root: int) -> Chunk:
        if collective == "all_reduce":
            return data[root]
        return slots.get(root, input[root])

    for level in reversed(tree.levels):
        for tail, head in level:
            root = root_of[head][me]
            plan.send([tree.moves[root][tail]], place(root))
        for tail in sorted({tail for tail, _ in level}):
            root = root_of[tail][me]
            if collective == "reduce_scatter":
                mine = plan.scratch(len(slots), like=input[root]) if tail else output[0]
                plan.copy(mine, input[root])
                slots[root] = mine
            plan.recv_reduce(
                [tree.moves[root][head] for t, head in level if t == tail], place(root)
            )
