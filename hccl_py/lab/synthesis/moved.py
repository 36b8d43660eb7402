"""Trees of one root of each kind, moved to all roots, and their plans.

If a network looks alike from many ranks, a tree may be moved to each of them as its root. All moved
trees together load links equally that are alike. So the search is for the trees of one root of each
kind, and takes as long among hundreds of ranks as among a few.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import inf

from hccl_py.lab.synthesis.growing import grow
from hccl_py.lab.synthesis.nearest import nearest_trees
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.order import plans_of
from hccl_py.lab.synthesis.packing import Tree, TreeTask, time_of
from hccl_py.lab.synthesis.symmetry import Symmetry, symmetry_of
from hccl_py.plan.language import Plan

MOVED = ("all_reduce", "all_gather", "reduce_scatter")
"""The collectives that such trees carry out: each rank is the root of some."""

_MOST_PARTS = 12
_MOST_OPS = 400_000  # of all ranks: their proof takes 20 s
_FLATNESS = (1e-3, 0.1)
_NEARLY = Fraction(1002, 1000)
_FINALISTS = 3


def moved_candidates(
    collective: str, name: str, network: Network, least: Fraction, most_parts: int = _MOST_PARTS
) -> list[tuple[Plan, ...]]:
    """Return plans of moved trees, not proved; empty: the network has no moves.

    Args:
        collective: one of `MOVED`.
        name: of the plans.
        network: of the ranks.
        least: a bound of the time, in units of all data at 1 kbit/s.
        most_parts: largest number of trees of a root.
    """
    symmetry = symmetry_of(network)
    if symmetry is None:
        return []
    n, has_switches = network.world_size, len(network.names) > network.world_size
    most_parts = max(1, min(most_parts, _MOST_PARTS, _MOST_OPS // (4 * n * n)))
    found: list[tuple[Fraction, list[Tree]]] = []
    best: Fraction | float = inf
    for is_grown in (True,) if has_switches else (False, True):
        for parts in range(1, most_parts + 1):
            if best <= least * _NEARLY:
                break
            for flatness in _FLATNESS if is_grown else _FLATNESS[:1]:
                if is_grown:
                    target = least * n * parts
                    trees = _grown(collective, network, symmetry, target, parts, flatness)
                else:
                    trees = _nearest(collective, network, symmetry, parts)
                found.append((time_of(network, trees, symmetry) / (n * parts), trees))
            best = min(time for time, _ in found)
    good = [trees for time, trees in found if time <= best * _NEARLY]
    orders = (False, True) if collective == "reduce_scatter" else (False,)
    return [
        plans_of(collective, name, network, trees, symmetry=symmetry, turned=turned)
        for trees in good[:_FINALISTS]
        for turned in orders
    ]


def _nearest(collective: str, network: Network, symmetry: Symmetry, parts: int) -> list[Tree]:
    roots = [root for root in symmetry.roots for _ in range(parts)]
    up: Sequence[tuple[int, ...]] = [()] * len(roots)
    down = up
    if collective != "all_gather":
        turned = symmetry_of(network.reversed)
        assert turned is not None
        up = nearest_trees(network.reversed, turned, parts)
    if collective != "reduce_scatter":
        down = nearest_trees(network, symmetry, parts)
    return [Tree(*one) for one in zip(roots, up, down, strict=True)]


def _grown(
    collective: str,
    network: Network,
    symmetry: Symmetry,
    target: Fraction,
    parts: int,
    flatness: float,
) -> list[Tree]:
    ways = collective != "all_gather", collective != "reduce_scatter"
    tasks = [TreeTask((root,), *ways) for root in symmetry.roots for _ in range(parts)]
    return grow(network, symmetry, tasks, target, flatness)
