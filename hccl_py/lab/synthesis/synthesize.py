"""The best plans for a network: trees packed for it, or an algorithm of the table if it is as good.

An algorithm of the table takes fewer steps, which counts in small calls. So trees are chosen only
if they are clearly faster; an even network keeps the table's algorithm.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from hccl_py.algorithms.plan_file import PlansOfRoots
from hccl_py.algorithms.table import ALGORITHMS, names_for, plans_for
from hccl_py.lab.synthesis.bound import (
    MOST_SEARCHED,
    Certificate,
    bound_of,
    certify,
    simulated_time,
)
from hccl_py.lab.synthesis.disjoint import disjoint_candidates
from hccl_py.lab.synthesis.moved import MOVED, moved_candidates
from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.order import makespan, plans_of
from hccl_py.lab.synthesis.packing import Tree, TreeTask, pack, time_of
from hccl_py.lab.synthesis.regions import Bound
from hccl_py.lab.synthesis.symmetry import Symmetry, symmetry_of
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Plan
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError

SYNTHESIZED = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
"""The collectives that trees can carry out."""

MOST_CHUNKS = 32
_NUMS_OF_CHUNKS = (*range(1, 9), *range(10, 16, 2), *range(16, MOST_CHUNKS, 4))
_NUMS_OF_MANY_RANKS = (1, 2, 4, 8, 16)
_PARTS, _PARTS_OF_MANY_RANKS = (1, 2, 3, 4, 6, 8), (1, 2)
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
        """Number of chunks of `data`, or of all blocks; each has its own tree."""
        first = next(iter(self.plans.values()))[0]
        return first.shape.data_chunks or first.world_size * first.shape.block_parts


def synthesize(collective: str, network: Network, most_chunks: int = MOST_CHUNKS) -> Synthesis:
    """Make plans, prove them, and compare them with the bound.

    Args:
        collective: one of `SYNTHESIZED`.
        network: of the ranks.
        most_chunks: largest number of chunks of `data`, or of each block. By default `data` among
            many ranks may have more, some for each rank, where the network looks alike from them.

    Raises:
        InvalidArgumentError: the collective or the number of chunks is none of these.
    """
    if collective not in SYNTHESIZED:
        raise InvalidArgumentError(f"expected one of {', '.join(SYNTHESIZED)}; got {collective}")
    if not 1 <= most_chunks <= MOST_CHUNKS:
        raise InvalidArgumentError(f"expected 1 to {MOST_CHUNKS} chunks, got {most_chunks}")
    has_many = network.world_size > MOST_SEARCHED
    has_switches = len(network.names) > network.world_size
    # Of routes that are as good receivers take turns, so routes by switches may look less alike.
    symmetry = symmetry_of(network) if has_many or not has_switches else None
    roots: Sequence[int | None] = [None]
    if COLLECTIVES[collective].rooted:
        if has_many and symmetry is None:
            raise _unlike()
        roots = range(network.world_size) if symmetry is None else symmetry.roots
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
        packed: list[PlansOfRoots] = []
        if collective in MOVED:
            parts = most_chunks
            if COLLECTIVES[collective].blocks is None and parts < MOST_CHUNKS:
                parts //= network.world_size
            moved = moved_candidates(collective, name, network, bounds[None].time, parts)
            packed += [{None: plans} for plans in moved]
        elif not has_switches:
            packed += disjoint_candidates(
                name, network, roots, _nums_of_chunks(network, most_chunks)
            )
        times = [_simulated(each, network) for each in packed]
        if has_many and symmetry is None:
            raise _unlike()
        is_good = (
            has_many or collective not in MOVED or min(times, default=inf) <= best * _WORTH_A_CHUNK
        )
        if not packed or not is_good:
            searched: list[PlansOfRoots] = [
                {
                    root: plans_of(collective, name, network, trees, root)
                    for root, trees in each.items()
                }
                for each in _trees(collective, network, bounds, most_chunks)
            ]
            packed += searched
            times += [_simulated(each, network) for each in searched]
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
    if symmetry is not None and root is not None:
        plans = _of_all_roots(plans, symmetry)
    others = tuple((one, table[one][root]) for one in by_time)
    return Synthesis(collective, name, plans, rated[root], root, others)


def _unlike() -> InvalidArgumentError:
    return InvalidArgumentError(
        f"among more than {MOST_SEARCHED} ranks expected a network that looks alike from many of "
        "them, such as racks of equal size whose ranks have consecutive numbers"
    )


def _of_all_roots(plans: PlansOfRoots, symmetry: Symmetry) -> PlansOfRoots:
    """Move the plans of the symmetry's roots to all; a proof holds for other names of ranks too."""
    found: dict[int | None, Sequence[Plan]] = {}
    for root in symmetry.roots:
        for move in symmetry.moves.tolist():
            moved = [_renamed(plan, move) for plan in plans[root]]
            found[move[root]] = sorted(moved, key=lambda one: one.rank)
    return {root: found[root] for root in range(len(found))}


def _renamed(plan: Plan, move: Sequence[int]) -> Plan:
    assert plan.root is not None
    ops = tuple(op._replace(peers=tuple(move[peer] for peer in op.peers)) for op in plan.ops)
    return replace(plan, rank=move[plan.rank], root=move[plan.root], ops=ops)


def _simulated(plans: PlansOfRoots, network: Network) -> float:
    return sum(simulated_time(one, network) for one in plans.values())


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


def _nums_of_chunks(network: Network, most: int) -> list[int]:
    """Return numbers of chunks to try: of all roots, as plans of one file cut `data` alike."""
    nums = _NUMS_OF_MANY_RANKS if network.world_size > _MANY_RANKS else _NUMS_OF_CHUNKS
    return [one for one in nums if one < most] + [most]


def _trees(
    collective: str, network: Network, bounds: Bounds, most_chunks: int
) -> list[dict[int | None, list[Tree]]]:
    if COLLECTIVES[collective].blocks is not None:
        nums = _PARTS_OF_MANY_RANKS if network.world_size > _MANY_RANKS else _PARTS
        num = [one * network.world_size for one in nums if one <= most_chunks]
    else:
        num = _nums_of_chunks(network, most_chunks)
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
            parts = num_chunks // network.world_size
            tasks = [
                TreeTask((rank,), goes_up, goes_down) for rank in everyone for _ in range(parts)
            ]
        else:
            tasks = [
                TreeTask(everyone if root is None else (root,), goes_up, goes_down)
            ] * num_chunks
        trees[root] = pack(network, tasks, bound.time * num_chunks, flatness)
        busiest = float(time_of(network, trees[root]))
        time += (busiest + makespan(network, trees[root])) / (2 * num_chunks)
    return _Packed(trees, time)
