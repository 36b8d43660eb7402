"""From a name in the table to a plan, and to the proof of all its plans."""

from hccl_py.algorithms.table import ALGORITHMS, names_for
from hccl_py.algorithms.topology import Topology
from hccl_py.plan import Plan, PlanBuilder, Seat, verify
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError


def plan_for(
    collective: str, algorithm: str, rank: int, topology: Topology, root: int | None = None
) -> Plan:
    """Write the plan of one rank.

    Args:
        collective: name, as in `COLLECTIVES`.
        algorithm: name, as in `ALGORITHMS`.
        rank: whose plan.
        topology: all ranks and their nodes.
        root: the root, for a rooted collective only.

    Raises:
        InvalidArgumentError: on an unknown name, or a root where there is none or that is no rank.
    """
    if (collective, algorithm) not in ALGORITHMS:
        valid = ", ".join(names_for(collective)) or "none, for there is no such collective"
        raise InvalidArgumentError(
            f"algorithm: {algorithm!r} is none of {collective}; there are: {valid}"
        )
    contract, entry = COLLECTIVES[collective], ALGORITHMS[collective, algorithm]
    n = topology.world_size
    if not 0 <= rank < n:
        raise InvalidArgumentError(f"rank: expected one of 0..{n - 1}, got {rank}")
    if (root is not None and not 0 <= root < n) or (root is not None) != contract.rooted:
        expected = f"one of 0..{n - 1}" if contract.rooted else "None"
        raise InvalidArgumentError(f"root of {collective}: expected {expected}, got {root}")
    shape = contract.shape(Seat(rank, n, root), entry.data_chunks(topology.nodes))
    builder = PlanBuilder(Plan(collective, algorithm, rank, n, root, shape), topology.nodes)
    entry.write(rank, n, builder)
    return builder.finish()


def plans_for(
    collective: str, algorithm: str, topology: Topology, root: int | None = None
) -> tuple[Plan, ...]:
    """Write the plans of all ranks; arguments as for `plan_for`."""
    ranks = range(topology.world_size)
    return tuple(plan_for(collective, algorithm, rank, topology, root) for rank in ranks)


def verify_algorithm(
    collective: str, algorithm: str, topology: Topology, root: int | None = None
) -> None:
    """Prove an algorithm for these ranks, out of place and in place; arguments as for `plan_for`.

    Raises:
        PlanError: naming rank, op and what is wrong.
    """
    plans = plans_for(collective, algorithm, topology, root)
    for in_place in (False, True):
        verify(plans, COLLECTIVES[collective], in_place=in_place)
