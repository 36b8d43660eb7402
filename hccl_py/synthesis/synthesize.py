"""The best plans for a network: trees packed for it, or an algorithm of the table if it is as good.

An algorithm of the table takes fewer steps, which counts in small calls. So trees have to finish
clearly more of the data to be chosen, and an even network keeps the table's algorithm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from hccl_py.algorithms.plan_file import PlansOfRoots
from hccl_py.algorithms.table import ALGORITHMS, names_for, plans_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan
from hccl_py.plan.verify import verify
from hccl_py.synthesis.bound import Bound, bound_of
from hccl_py.synthesis.certificate import Certificate, certify
from hccl_py.synthesis.network import Network
from hccl_py.synthesis.order import plans_of
from hccl_py.synthesis.packing import Task, Tree, pack, time_of
from hccl_py.transport.errors import InvalidArgumentError

SYNTHESIZED = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The collectives for which there are plans of trees."""

MOST_CHUNKS = 16
_WORTH_A_CHANGE = Fraction(105, 100)
_WORTH_A_CHUNK = Fraction(102, 100)
_NAME = "packed_trees"


@dataclass(frozen=True)
class Synthesis:
    """Proved plans of a collective, and how good they are.

    Attributes:
        name: `packed_trees`, or the algorithm of the table that is as good.
        plans: of all ranks, by root.
        certificate: of the root with the smallest share.
        root: that one.
        table: the algorithms of the table for that root, best first.
    """

    collective: str
    name: str
    plans: PlansOfRoots
    certificate: Certificate
    root: int | None
    table: tuple[tuple[str, Certificate], ...]

    @property
    def num_chunks(self) -> int:
        """How many chunks of `data`, or blocks, each has its own way."""
        first = next(iter(self.plans.values()))[0]
        return first.shape.data_chunks or first.world_size


def synthesize(collective: str, network: Network, most_chunks: int = MOST_CHUNKS) -> Synthesis:
    """Make plans, prove them, and say which share of the bound they reach.

    Args:
        collective: one of `SYNTHESIZED`.
        network: of the ranks.
        most_chunks: into how many chunks `data` is cut at most. Blocks are never cut: each travels
            along one tree.

    Raises:
        InvalidArgumentError: the collective is another one, or there is no chunk.
    """
    if collective not in SYNTHESIZED:
        raise InvalidArgumentError(f"expected one of {', '.join(SYNTHESIZED)}; got {collective}")
    if most_chunks < 1:
        raise InvalidArgumentError(f"expected 1 chunk or more, got {most_chunks}")
    roots = range(network.world_size) if COLLECTIVES[collective].rooted else [None]
    bounds = {root: bound_of(collective, network, root) for root in roots}
    rivals = {root: _rivals(collective, network, bound, root) for root, bound in bounds.items()}
    chosen: dict[str, PlansOfRoots] = {_NAME: _trees(collective, network, bounds, most_chunks)}
    for name in next(iter(rivals.values())):
        chosen[name] = {root: rivals[root][name] for root in roots}
    certificates = {
        name: {root: certify(plans, network, bounds[root]) for root, plans in by_root.items()}
        for name, by_root in chosen.items()
    }
    total = {
        name: sum((one.time for one in by_root.values()), Fraction())
        for name, by_root in certificates.items()
    }
    table = sorted((name for name in chosen if name != _NAME), key=lambda name: total[name])
    name = table[0] if table and total[table[0]] <= total[_NAME] * _WORTH_A_CHANGE else _NAME
    for plans in chosen[name].values():
        for in_place in (False, True):
            verify(plans, COLLECTIVES[collective], in_place=in_place)
    root = min(roots, key=lambda one: certificates[name][one].share)
    rated = tuple((one, certificates[one][root]) for one in table)
    return Synthesis(collective, name, chosen[name], certificates[name][root], root, rated)


def _rivals(
    collective: str, network: Network, bound: Bound, root: int | None
) -> dict[str, Sequence[Plan]]:
    """Return the plans of the table that a file can hold and this network can carry."""
    found = {}
    for name in names_for(collective):
        if not ALGORITHMS[collective, name].equal_blocks:
            plans = plans_for(collective, name, network.nodes, root)
            if all((plan.rank, peer) in network.routes for plan, peer in _pairs(plans)):
                found[name] = plans
    return found


def _pairs(plans: Sequence[Plan]) -> Iterator[tuple[Plan, int]]:
    return ((plan, peer) for plan in plans for op in plan.ops if op.src for peer in op.peers)


def _trees(
    collective: str, network: Network, bounds: dict[int | None, Bound], most_chunks: int
) -> PlansOfRoots:
    n = network.world_size
    everyone = tuple(range(n))
    if COLLECTIVES[collective].blocks is not None:
        goes_up = collective == "reduce_scatter"
        tasks = [Task((rank,), goes_up, not goes_up) for rank in everyone]
        trees = pack(network, tasks, bounds[None].time * n)
        return {None: plans_of(collective, _NAME, network, trees)}
    # All roots need the same number of chunks, for `data` is cut alike.
    best: dict[int, dict[int | None, list[Tree]]] = {}
    times: dict[int, Fraction] = {}
    for num_chunks in range(1, most_chunks + 1):
        best[num_chunks] = {}
        for root, bound in bounds.items():
            roots = everyone if root is None else (root,)
            tasks = [Task(roots, root is None, goes_down=True)] * num_chunks
            best[num_chunks][root] = pack(network, tasks, bound.time * num_chunks)
        times[num_chunks] = sum(
            (time_of(network, trees) / num_chunks for trees in best[num_chunks].values()),
            Fraction(),
        )
    least = min(times.values())
    num = min(num for num, time in times.items() if time <= least * _WORTH_A_CHUNK)
    return {
        root: plans_of(collective, _NAME, network, trees, root) for root, trees in best[num].items()
    }
