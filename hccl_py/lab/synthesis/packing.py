"""Trees that load all links evenly: each is the cheapest at prices that rise with the load.

The method is that of fractional packings (N. Garg and J. Koenemann, 2007), with whole trees, one
for each chunk. A tree is removed, links are priced by the load of the other trees, and the cheapest
tree replaces it; prices rise from round to round. The load of a link is the number of chunks that
cross it; the time of a packing is the largest load divided by its link's rate.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hccl_py.lab.synthesis.arborescence import Matrix, arborescence
from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.lab.synthesis.symmetry import Symmetry

_STEEPNESS = (4, 8, 16, 32, 64)
_ROUNDS_EACH = 3
_MOST_EXPONENT = 300


@dataclass(frozen=True)
class Tree:
    """The routes of a chunk: up to the root, reduced on the way, then down, or one of the two.

    Attributes:
        up: by rank, the receiver of its partial result (the root: itself); empty: nothing goes up.
        down: by rank, the sender of the chunk to it; empty: nothing goes down.
    """

    root: int
    up: tuple[int, ...]
    down: tuple[int, ...]

    @property
    def messages(self) -> list[Arc]:
        """Sender and receiver of each message."""
        up = [(rank, to) for rank, to in enumerate(self.up) if rank != to]
        return up + [(source, rank) for rank, source in enumerate(self.down) if rank != source]


@dataclass(frozen=True)
class TreeTask:
    """The requirements of a tree: its possible roots, and its directions."""

    roots: tuple[int, ...]
    goes_up: bool
    goes_down: bool


def pack(
    network: Network, tasks: Sequence[TreeTask], target: Fraction, flatness: float
) -> list[Tree]:
    """Return a tree for each task.

    Args:
        network: links and routes.
        tasks: one for each chunk.
        target: lower bound of the time of any packing, in chunks at 1 kbit/s.
        flatness: price reduction of a root's links, 0 to 1. In flat trees fewer messages wait for
            one another, but links may be loaded less evenly.
    """
    return _Packing(network, tasks, target, flatness).run()


def time_of(network: Network, trees: Iterable[Tree], symmetry: Symmetry | None = None) -> Fraction:
    """Return the time of the busiest link, in chunks at 1 kbit/s, if the trees are moved too."""
    load = Counter[Arc]()
    for tree in trees:
        load.update(_crossed(network, tree))
    rate = network.kbit_per_s
    if symmetry is None:
        return max(Fraction(count, rate[arc]) for arc, count in load.items())
    alike, num_alike = Counter[Arc](), symmetry.num_alike
    for arc, count in load.items():
        alike[symmetry.kind_of[arc]] += count * len(symmetry.moves)
    return max(Fraction(many, num_alike[kind] * rate[kind]) for kind, many in alike.items())


def _crossed(network: Network, tree: Tree) -> list[Arc]:
    return [arc for message in tree.messages for arc in network.routes[message]]


class _Packing:
    def __init__(
        self, network: Network, tasks: Sequence[TreeTask], target: Fraction, flatness: float
    ) -> None:
        self._network, self._tasks, self._flatness = network, tasks, flatness
        # Of each link, the share of the target that one chunk takes.
        self._share = {arc: float(1 / (rate * target)) for arc, rate in network.kbit_per_s.items()}
        self._load = Counter[Arc]()
        # The links of all routes, one route after the other, and where each begins.
        self._arcs = {arc: at for at, arc in enumerate(self._share)}
        ways = network.routes.values()
        self._on_ways = np.array([self._arcs[arc] for way in ways for arc in way])
        self._begins = np.cumsum([0, *map(len, ways)])[:-1]
        self._tails, self._heads = np.array(list(network.routes)).T
        self._shares = np.array(list(self._share.values()))

    def run(self) -> list[Tree]:
        trees = [self._placed(task, _STEEPNESS[0], range(len(task.roots))) for task in self._tasks]
        best, best_time = list(trees), self._time()
        for turn in range(_ROUNDS_EACH * len(_STEEPNESS)):
            for at, task in enumerate(self._tasks):
                self._load.subtract(_crossed(self._network, trees[at]))
                # Tries one other root each time.
                roots = {task.roots.index(trees[at].root), (turn + at) % len(task.roots)}
                steepness = _STEEPNESS[turn // _ROUNDS_EACH]
                trees[at] = self._placed(task, steepness, sorted(roots))
                if (time := self._time()) < best_time - 1e-12:
                    best, best_time = list(trees), time
            if best_time <= 1 + 1e-9:
                break
        return best

    def _time(self) -> float:
        return max(self._share[arc] * count for arc, count in self._load.items())

    def _placed(self, task: TreeTask, steepness: float, roots: Iterable[int]) -> Tree:
        costs = self._costs(steepness)
        turned, found = costs.T, []
        for at in roots:
            root, cost, ways = task.roots[at], 0.0, []
            for wanted, each in ((task.goes_up, turned), (task.goes_down, costs)):
                way = self._tree(each, root) if wanted else []
                cost += float(sum(each[up, rank] for rank, up in enumerate(way) if rank != up))
                ways.append(tuple(way))
            found.append((cost, Tree(root, *ways)))
        _, tree = min(found, key=lambda one: one[0])
        self._load.update(_crossed(self._network, tree))
        return tree

    def _tree(self, costs: Matrix, root: int) -> list[int]:
        biased = costs.copy()
        biased[root] *= 1 - self._flatness
        return arborescence(biased, root)

    def _costs(self, steepness: float) -> Matrix:
        """Price each pair of ranks: what one more chunk adds to the sum of the potentials."""
        counts = np.array([self._load[arc] for arc in self._arcs])
        # Limited, so that the product of both powers is finite.
        loads = np.minimum(counts * self._shares, _MOST_EXPONENT / steepness)
        one_more = np.expm1(np.minimum(steepness * self._shares, _MOST_EXPONENT))
        prices = np.exp(steepness * (loads - 1)) * one_more
        found = np.full((self._network.world_size,) * 2, np.inf)
        found[self._tails, self._heads] = np.add.reduceat(prices[self._on_ways], self._begins)
        return found
