"""The best plans for a network: trees packed for it, or an algorithm of the table if it is as good.

An algorithm of the table takes fewer steps, which counts in small calls. So trees are chosen only
if they are clearly faster; an even network keeps the table's algorithm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hccl_py.algorithms.plan_file import PlansOfRoots
from hccl_py.algorithms.table import ALGORITHMS, names_for, plans_for
from hccl_py.lab.synthesis.bound import (
    MOST_SEARCHED,
    Bound,
    Certificate,
    bound_of,
    certify,
    simulated_time,
)
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.order import makespan, plans_of
from hccl_py.lab.synthesis.packing import Tree, TreeTask, pack, time_of
from hccl_py.lab.synthesis.symmetry import MOVED, moved_plans, moved_tree
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

SYNTHESIZED = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The collectives that trees can carry out."""

MOST_CHUNKS = 32
_NUMS_OF_CHUNKS = (*range(1, 9), *range(10, 16, 2), *range(16, MOST_CHUNKS, 4))
_NUMS_OF_MANY_RANKS = (1, 2, 4, 8, 16)
_MANY_RANKS = 16  # trees of more ranks take long to find
_FLATNESS = (1e-6, 0.3, 0.6)
_WORTH_A_CHANGE = 1.05
_WORTH_A_CHUNK = 1.02
_FINALISTS = 4
_NAME = "packed_trees"
_GOING_UP = ("all_reduce", "reduce_scatter")

Bounds = Mapping[int | None, Bound]
"""By root."""


@dataclass(frozen=True)
class Synthesis:
    """Proved plans of a collective, and their quality.

    Attributes:
        name: `packed_trees`, or the algorithm of the table that is as good.
        plans: of all ranks, by root.
        certificate: of the root with the smallest share.
        root: of the certificate.
        table: the algorithms of the table for this root, best first.
    """

    collective: str
    name: str
    plans: PlansOfRoots
    certificate: Certificate
    root: int | None
    table: tuple[tuple[str, Certificate], ...]

    @property
    def num_chunks(self) -> int:
        """Number of chunks of `data`, or of blocks; each has its own tree."""
        first = next(iter(self.plans.values()))[0]
        return first.shape.data_chunks or first.world_size


def synthesize(collective: str, network: Network, most_chunks: int = MOST_CHUNKS) -> Synthesis:
    """Make plans, prove them, and compare them with the bound.

    Args:
        collective: one of `SYNTHESIZED`.
        network: of the ranks.
        most_chunks: largest number of chunks of `data`. Blocks are never cut: each has one tree.

    Raises:
        InvalidArgumentError: the collective or the number of chunks is none of these.
    """
    if collective not in SYNTHESIZED:
        raise InvalidArgumentError(f"expected one of {', '.join(SYNTHESIZED)}; got {collective}")
    if not 1 <= most_chunks <= MOST_CHUNKS:
        raise InvalidArgumentError(f"expected 1 to {MOST_CHUNKS} chunks, got {most_chunks}")
    roots = range(network.world_size) if COLLECTIVES[collective].rooted else [None]
    bounds = {root: bound_of(collective, network, root) for root in roots}
    rivals = {root: _rivals(collective, network, root) for root in roots}
    table = {
        name: {root: certify(rivals[root][name], network, bounds[root]) for root in roots}
        for name in names_for(collective)
        if all(name in rivals[root] for root in roots)
    }
    total = {name: sum(one.simulated for one in table[name].values()) for name in table}
    by_time = sorted(table, key=lambda one: total[one])
    name, best = _NAME, _least(bounds)
    if not by_time or total[by_time[0]] > best * _WORTH_A_CHANGE:
        tree = moved_tree(network) if collective in MOVED else None
        packed: list[PlansOfRoots] = []
        if tree is not None:
            packed.append({None: moved_plans(collective, name, network, tree)})
        elif network.world_size > MOST_SEARCHED:
            raise InvalidArgumentError(
                f"among more than {MOST_SEARCHED} ranks expected one of {', '.join(MOVED)}, on a "
                "ring, torus or hypercube without switches"
            )
        packed += [
            {root: plans_of(collective, name, network, trees, root) for root, trees in each.items()}
            for each in _trees(collective, network, bounds, most_chunks)
        ]
        times = [sum(simulated_time(one, network) for one in each.values()) for each in packed]
        best = min(times)
    if by_time and total[by_time[0]] <= best * _WORTH_A_CHANGE:
        name = by_time[0]
        plans: PlansOfRoots = {root: rivals[root][name] for root in roots}
    else:
        plans = packed[times.index(best)]
    for each in plans.values():
        for in_place in (False, True):
            verify(each, COLLECTIVES[collective], in_place=in_place)
    rated = {root: certify(each, network, bounds[root]) for root, each in plans.items()}
    root = min(roots, key=lambda one: rated[one].share)
    others = tuple((one, table[one][root]) for one in by_time)
    return Synthesis(collective, name, plans, rated[root], root, others)


def _least(bounds: Bounds) -> float:
    return float(sum(bound.time for bound in bounds.values()))


def _rivals(collective: str, network: Network, root: int | None) -> dict[str, Sequence[Plan]]:
    """Return the table's plans that fit a plan file and that this network has routes for."""
    found: dict[str, Sequence[Plan]] = {}
    for name in names_for(collective):
        if not ALGORITHMS[collective, name].equal_blocks:
            plans = plans_for(collective, name, network.nodes, root)
            if all((plan.rank, peer) in network.routes for plan, peer in _pairs(plans)):
                found[name] = plans
    return found


def _pairs(plans: Sequence[Plan]) -> Iterator[tuple[Plan, int]]:
    return ((plan, peer) for plan in plans for op in plan.ops if op.src for peer in op.peers)


@dataclass(frozen=True)
class _Packed:
    """Trees for every root, and the time by which they are compared, summed over the roots.

    The time is the mean of that of the busiest link (many tiles) and that of one tile alone. It
    chooses the finalists, which are simulated.
    """

    trees: dict[int | None, list[Tree]]
    time: float


def _trees(
    collective: str, network: Network, bounds: Bounds, most_chunks: int
) -> list[dict[int | None, list[Tree]]]:
    if network.world_size > MOST_SEARCHED:
        return []
    if COLLECTIVES[collective].blocks is not None:
        num = [network.world_size]  # blocks are never cut
    else:
        # All roots have the same number of chunks, because plans of one file cut `data` alike.
        is_large = network.world_size > _MANY_RANKS
        nums = _NUMS_OF_MANY_RANKS if is_large else _NUMS_OF_CHUNKS
        num = [one for one in nums if one < most_chunks] + [most_chunks]
    found: list[_Packed] = []
    for num_chunks in num:
        each = [
            _packed(collective, network, bounds, num_chunks, flatness) for flatness in _FLATNESS
        ]
        found += each
        if min(one.time for one in each) <= _least(bounds) * _WORTH_A_CHUNK:
            break
    return [one.trees for one in sorted(found, key=lambda one: one.time)[:_FINALISTS]]


def _packed(
    collective: str, network: Network, bounds: Bounds, num_chunks: int, flatness: float
) -> _Packed:
    everyone, time = tuple(range(network.world_size)), 0.0
    trees: dict[int | None, list[Tree]] = {}
    goes_up, goes_down = collective in _GOING_UP, collective != "reduce_scatter"
    for root, bound in bounds.items():
        if COLLECTIVES[collective].blocks is not None:
            tasks = [TreeTask((rank,), goes_up, goes_down) for rank in everyone]
        else:
            tasks = [
                TreeTask(everyone if root is None else (root,), goes_up, goes_down)
            ] * num_chunks
        trees[root] = pack(network, tasks, bound.time * num_chunks, flatness)
        busiest = float(time_of(network, trees[root]))
        time += (busiest + makespan(network, trees[root])) / (2 * num_chunks)
    return _Packed(trees, time)
