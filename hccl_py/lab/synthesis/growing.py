"""Trees that grow by the cheapest message, for networks that look alike from many ranks.

Moves take a tree to every root, so a single tree loads links as a packing of all does. A tree grows
from its root: the cheapest message between a rank inside and one outside is added. Prices rise with
the load, that of the tree itself too. The method is R. Prim's, with prices that change.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.packing import Tree, TreeTask
from hccl_py.lab.synthesis.symmetry import Symmetry

_STEEPNESS = (8, 32, 64)
_MOST_EXPONENT = 300

Numbers = npt.NDArray[np.float64]


def grow(
    network: Network,
    symmetry: Symmetry,
    tasks: Sequence[TreeTask],
    target: Fraction,
    flatness: float,
) -> list[Tree]:
    """Return a tree for each task, which has one root.

    Args:
        network: links and routes.
        symmetry: its moves take each tree to other roots, and load links with all.
        tasks: one for each chunk of the symmetry's roots.
        target: lower bound of the time with all moved trees, in chunks at 1 kbit/s.
        flatness: added price of a message for each step from the root, as a share.
    """
    growing = _Growing(network, symmetry, target, flatness)
    trees: list[Tree] = []
    best, best_time = trees, np.inf
    for steepness in _STEEPNESS:
        for at, task in enumerate(tasks):
            if len(trees) < len(tasks):
                trees.append(growing.tree(task, steepness))
            else:
                growing.remove(trees[at])
                trees[at] = growing.tree(task, steepness)
        if (time := growing.time) < best_time - 1e-12:
            best, best_time = list(trees), time
        if time <= 1 + 1e-9:
            break
    return best


class _Growing:
    """The load of each kind of link, as a share of the target."""

    def __init__(
        self, network: Network, symmetry: Symmetry, target: Fraction, flatness: float
    ) -> None:
        self._n, self._flatness = network.world_size, flatness
        kinds = {kind: at for at, kind in enumerate(symmetry.num_alike)}
        self._shares = np.array(
            [
                float(len(symmetry.moves) / (many * network.kbit_per_s[kind] * target))
                for kind, many in symmetry.num_alike.items()
            ]
        )
        self._load = np.zeros(len(kinds))
        # Routes with the same kinds of links are alike: by sender and receiver, the number of its
        # route, and by this number how often each kind is on it. The last one is none.
        known: dict[tuple[int, ...], int] = {}
        self._route = np.full((self._n, self._n), -1)
        for pair, way in network.routes.items():
            on_way = tuple(sorted(kinds[symmetry.kind_of[arc]] for arc in way))
            self._route[pair] = known.setdefault(on_way, len(known))
        self._on_route = np.array([np.bincount(one, minlength=len(kinds)) for one in known])

    @property
    def time(self) -> float:
        """The load of the busiest link."""
        return float(self._load.max())

    def tree(self, task: TreeTask, steepness: float) -> Tree:
        """Grow a tree, and add its load."""
        (root,) = task.roots
        up = self._grown(root, self._route.T, steepness) if task.goes_up else ()
        down = self._grown(root, self._route, steepness) if task.goes_down else ()
        return Tree(root, up, down)

    def remove(self, tree: Tree) -> None:
        """Remove the load of a tree."""
        for source, target in tree.messages:
            self._load -= self._on_route[self._route[source, target]] * self._shares

    def _grown(self, root: int, route: npt.NDArray[np.int64], steepness: float) -> tuple[int, ...]:
        parents, depth = [root] * self._n, np.zeros(self._n)
        allowed = np.zeros((self._n, self._n), bool)  # from a rank inside to one outside
        allowed[root] = True
        allowed[:, root] = False
        inside = [root]
        for _ in range(self._n - 1):
            prices = np.append(self._on_route @ self._prices(steepness), np.inf)
            rows = prices[route[inside]] * (1 + self._flatness * depth[inside])[:, None]
            rows[~allowed[inside]] = np.inf
            row, head = np.unravel_index(int(rows.argmin()), rows.shape)
            tail = inside[row]
            parents[head], depth[head] = tail, depth[tail] + 1
            self._load += self._on_route[route[tail, head]] * self._shares
            inside.append(int(head))
            allowed[head] = True
            allowed[:, inside] = False
        return tuple(parents)

    def _prices(self, steepness: float) -> Numbers:
        """Return what one more chunk on a link of each kind adds to the sum of the potentials."""
        # Limited, so that the product of both powers is finite.
        loads = np.minimum(self._load, _MOST_EXPONENT / steepness)
        one_more = np.expm1(np.minimum(steepness * self._shares, _MOST_EXPONENT))
        prices: Numbers = np.exp(steepness * (loads - 1)) * one_more
        return prices
