"""Trees in which each rank gets a chunk from a rank nearer to the root, on networks of ranks alone.

Every rank is as near to its root as links allow. Among the parents that it may have, those are
chosen that take each kind of link equally often. This takes no search of trees, so it is for
hundreds of ranks.
"""

from collections import deque
from collections.abc import Sequence
from fractions import Fraction

from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.lab.synthesis.symmetry import Symmetry

_Seat = tuple[int, int]
"""A rank in a tree: the tree's number, and the rank."""


def nearest_trees(network: Network, symmetry: Symmetry, parts: int) -> list[tuple[int, ...]]:
    """Return trees, `parts` for each root of the symmetry: by rank, its parent or itself."""
    return _Nearest(network, symmetry, parts).trees()


class _Nearest:
    def __init__(self, network: Network, symmetry: Symmetry, parts: int) -> None:
        self._roots = [root for root in symmetry.roots for _ in range(parts)]
        self._distances = {root: _distances(network, root) for root in symmetry.roots}
        # Of each kind of link, the time that a chunk takes if every root has it.
        num_moves = len(symmetry.moves)
        self._time_of = {
            kind: Fraction(num_moves, network.kbit_per_s[kind] * many)
            for kind, many in symmetry.num_alike.items()
        }
        # Of each seat, the parents by kind of link.
        self._ways: dict[_Seat, dict[Arc, int]] = {}
        for number, root in enumerate(self._roots):
            far = self._distances[root]
            for tail, head in sorted(network.kbit_per_s):
                if far[head] == far[tail] + 1:
                    ways = self._ways.setdefault((number, head), {})
                    ways.setdefault(symmetry.kind_of[tail, head], tail)

    def trees(self) -> list[tuple[int, ...]]:
        taken: dict[Arc, set[_Seat]] = {kind: set() for kind in self._time_of}
        for seat, ways in self._ways.items():
            taken[min(ways, key=lambda kind: self._load(taken, kind, 1))].add(seat)
        while self._improve(taken):
            pass
        parents = [[root] * len(self._distances[root]) for root in self._roots]
        for kind, seats in taken.items():
            for number, rank in seats:
                parents[number][rank] = self._ways[number, rank][kind]
        return list(map(tuple, parents))

    def _load(self, taken: dict[Arc, set[_Seat]], kind: Arc, more: int = 0) -> Fraction:
        return self._time_of[kind] * (len(taken[kind]) + more)

    def _improve(self, taken: dict[Arc, set[_Seat]]) -> bool:
        """Move seats along a chain of kinds, from the most loaded one to one with less load."""
        first = max(taken, key=lambda kind: self._load(taken, kind))
        most = self._load(taken, first)
        came: dict[Arc, tuple[_Seat, Arc] | None] = {first: None}
        queue = deque([first])
        while queue:
            kind = queue.popleft()
            if self._load(taken, kind, 1) < most:
                while (step := came[kind]) is not None:
                    seat, before = step
                    taken[before].remove(seat)
                    taken[kind].add(seat)
                    kind = before
                return True
            for seat in sorted(taken[kind]):
                for other in self._ways[seat]:
                    if other not in came:
                        came[other] = seat, kind
                        queue.append(other)
        return False


def _distances(network: Network, root: int) -> Sequence[int]:
    heads: list[list[int]] = [[] for _ in network.names]
    for tail, head in network.kbit_per_s:
        heads[tail].append(head)
    far, queue = {root: 0}, deque([root])
    while queue:
        for head in heads[here := queue.popleft()]:
            if head not in far:
                far[head] = far[here] + 1
                queue.append(head)
    return [far[rank] for rank in range(network.world_size)]
