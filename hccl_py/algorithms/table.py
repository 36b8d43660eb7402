"""Every algorithm by collective and name, its plans, and their proof.

All take any number of ranks, any nodes and any root. The tuner reads the exceptions in an entry.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hccl_py.algorithms import (
    bine,
    direct,
    doubling,
    halving_doubling,
    hierarchical,
    leader,
    mesh,
    ring,
    tree,
)
from hccl_py.algorithms.neighbours import (
    are_on_a_node,
    are_two_on_a_node,
    count_ranks,
    half_of_ranks,
)
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES, Contract
from hccl_py.plan.language import Nodes, Plan, PlanBuilder, PlanError
from hccl_py.plan.verify import verify
from hccl_py.transport.errors import InvalidArgumentError


class Algorithm(NamedTuple):
    """An entry of the table."""

    write: Callable[[int, int, PlanBuilder], None]  # the algorithm: the plan of rank `me` of `n`
    # Number of chunks of `data`, or of each block.
    data_chunks: Callable[[Nodes], int] = lambda _nodes: 1
    # Most chunks in one op of any rank. The engine cuts tiles so that such an op fits one message,
    # and all ranks must cut the same tiles.
    max_span: Callable[[Nodes], int] = lambda _nodes: 1
    # Whether every message is a block, or all of `data`, that its receiver neither reduces nor
    # passes on: such messages need not be cut small inside a node.
    long_messages: Callable[[Nodes], bool] = lambda _nodes: False
    equal_blocks: bool = False  # it requires blocks of one length on all ranks
    # It is correct with compressed edges between nodes: every value is compressed at most once.
    compressible: bool = False
    # A result is one reduction of all ranks' contributions, in rank order: the same bits whatever
    # the nodes and the size, and enough for elements too narrow to hold a sum on its way.
    in_rank_order: bool = False


ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "one_shot"): Algorithm(direct.all_reduce, in_rank_order=True),
    ("all_reduce", "mesh"): Algorithm(
        mesh.all_reduce, count_ranks, compressible=True, in_rank_order=True
    ),
    ("all_reduce", "ring"): Algorithm(ring.all_reduce, count_ranks),
    ("all_reduce", "tree"): Algorithm(tree.all_reduce, lambda _nodes: 2),
    ("all_reduce", "halving_doubling"): Algorithm(
        halving_doubling.all_reduce, count_ranks, half_of_ranks
    ),
    ("all_reduce", "recursive_doubling"): Algorithm(doubling.all_reduce),
    ("all_reduce", "hierarchical"): Algorithm(
        hierarchical.all_reduce,
        hierarchical.all_reduce_chunks,
        hierarchical.all_reduce_max_span,
        compressible=True,
    ),
    ("all_reduce", "leader"): Algorithm(leader.all_reduce),
    ("all_reduce", "bine"): Algorithm(bine.all_reduce, bine.num_seats, bine.max_span),
    ("all_reduce", "bine_doubling"): Algorithm(bine.all_reduce_by_doubling),
    ("broadcast", "direct"): Algorithm(direct.broadcast, long_messages=are_two_on_a_node),
    ("broadcast", "mesh"): Algorithm(mesh.broadcast, count_ranks),
    ("broadcast", "tree"): Algorithm(tree.broadcast),
    ("broadcast", "two_trees"): Algorithm(tree.broadcast_by_two_trees, lambda _nodes: 2),
    ("broadcast", "hierarchical"): Algorithm(
        hierarchical.broadcast, hierarchical.owners_per_node, hierarchical.owners_per_node
    ),
    ("broadcast", "leader"): Algorithm(leader.broadcast),
    ("broadcast", "bine"): Algorithm(bine.broadcast),
    ("broadcast", "bine_scatter"): Algorithm(
        bine.broadcast_by_scatter, bine.num_seats, bine.max_span
    ),
    ("reduce", "direct"): Algorithm(direct.reduce, in_rank_order=True),
    ("reduce", "mesh"): Algorithm(mesh.reduce, count_ranks, in_rank_order=True),
    ("reduce", "tree"): Algorithm(tree.reduce),
    ("reduce", "hierarchical"): Algorithm(hierarchical.reduce, hierarchical.owners_per_node),
    ("reduce", "leader"): Algorithm(leader.reduce),
    ("reduce", "bine"): Algorithm(bine.reduce),
    ("all_gather", "mesh"): Algorithm(mesh.all_gather, long_messages=are_two_on_a_node),
    ("all_gather", "ring"): Algorithm(ring.all_gather),
    ("all_gather", "bruck"): Algorithm(
        doubling.all_gather, max_span=doubling.all_gather_max_span, equal_blocks=True
    ),
    ("all_gather", "hierarchical"): Algorithm(hierarchical.all_gather),
    ("all_gather", "leader"): Algorithm(
        leader.all_gather, max_span=leader.max_span, equal_blocks=True
    ),
    ("all_gather", "bine"): Algorithm(bine.all_gather, max_span=bine.max_span, equal_blocks=True),
    ("reduce_scatter", "mesh"): Algorithm(
        mesh.reduce_scatter, compressible=True, in_rank_order=True
    ),
    ("reduce_scatter", "ring"): Algorithm(ring.reduce_scatter),
    ("reduce_scatter", "hierarchical"): Algorithm(hierarchical.reduce_scatter, compressible=True),
    ("reduce_scatter", "leader"): Algorithm(
        leader.reduce_scatter, max_span=leader.max_span, equal_blocks=True
    ),
    ("reduce_scatter", "bine"): Algorithm(
        bine.reduce_scatter, max_span=bine.max_span, equal_blocks=True
    ),
    ("all_to_all", "direct"): Algorithm(direct.all_to_all, long_messages=are_on_a_node),
    ("all_to_all", "bruck"): Algorithm(
        doubling.all_to_all, max_span=half_of_ranks, equal_blocks=True
    ),
    ("all_to_all", "leader"): Algorithm(
        leader.all_to_all,
        max_span=leader.all_to_all_max_span,
        equal_blocks=True,
        long_messages=are_on_a_node,
    ),
    ("gather", "direct"): Algorithm(direct.gather, long_messages=are_on_a_node),
    ("scatter", "direct"): Algorithm(direct.scatter, long_messages=are_on_a_node),
    ("barrier", "one_shot"): Algorithm(direct.all_reduce),
    ("barrier", "dissemination"): Algorithm(tree.barrier),
    ("barrier", "leader"): Algorithm(leader.barrier),
}


def names_for(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms for a collective."""
    return tuple(name for owner, name in ALGORITHMS if owner == collective)


def plan_for(
    collective: str, algorithm: str, rank: int, nodes: Nodes, root: int | None = None
) -> Plan:
    """Write the plan of one rank.

    Raise InvalidArgumentError for an unknown name, or a root that is wrong for the collective.
    """
    if (collective, algorithm) not in ALGORITHMS:
        valid = ", ".join(names_for(collective)) or "none: there is no such collective"
        raise InvalidArgumentError(
            f"algorithm: {algorithm!r} is none of {collective}; there are: {valid}"
        )
    contract, entry = COLLECTIVES[collective], ALGORITHMS[collective, algorithm]
    n = count_ranks(nodes)
    if (root is not None and not 0 <= root < n) or (root is not None) != contract.rooted:
        expected = f"one of 0..{n - 1}" if contract.rooted else "None"
        raise InvalidArgumentError(f"root of {collective}: expected {expected}, got {root}")
    return write_plan(entry, Plan(collective, algorithm, rank, n, root), nodes)


def write_plan(entry: Algorithm, header: Plan, nodes: Nodes) -> Plan:
    """Run an algorithm to write the plan whose head is `header`."""
    shape = COLLECTIVES[header.collective].shape(header, entry.data_chunks(nodes))
    builder = PlanBuilder(replace(header, shape=shape), nodes)
    entry.write(header.rank, header.world_size, builder)
    return builder.finish()


def plans_for(
    collective: str, algorithm: str, nodes: Nodes, root: int | None = None
) -> tuple[Plan, ...]:
    """Write the plans of all ranks."""
    ranks = range(count_ranks(nodes))
    return tuple(plan_for(collective, algorithm, rank, nodes, root) for rank in ranks)


def contract_for(collective: str, algorithm: str) -> Contract:
    """Return an algorithm's postcondition and precondition."""
    entry = ALGORITHMS[collective, algorithm]
    contract = COLLECTIVES[collective]
    return replace(contract, equal_blocks=entry.equal_blocks, in_rank_order=entry.in_rank_order)


def verify_algorithm(
    collective: str,
    algorithm: str,
    nodes: Nodes,
    root: int | None = None,
    *,
    compressed: bool = False,
) -> None:
    """Prove an algorithm for these ranks, out of place and in place, or raise PlanError.

    `compressed`: with its edges between nodes compressed.
    """
    plans = plans_for(collective, algorithm, nodes, root)
    contract = contract_for(collective, algorithm)
    if compressed:  # what is rounded depends on the nodes
        plans = tuple(compress_scale_out(plan, nodes) for plan in plans)
        contract = replace(contract, in_rank_order=False)
    verify_as_declared(ALGORITHMS[collective, algorithm], plans, contract, nodes)


def verify_as_declared(
    entry: Algorithm, plans: Sequence[Plan], contract: Contract, nodes: Nodes
) -> None:
    """Prove plans in each way in which the engine runs them, as its entry says; or raise PlanError.

    All ranks must cut the same tiles, by the most chunks that an op of any of them has.
    """
    widest = max(plans, key=lambda plan: plan.span)
    if widest.span > entry.max_span(nodes):
        message = f"an op has {widest.span} chunks, and its entry says {entry.max_span(nodes)}"
        raise PlanError(widest.rank, None, message)
    # A collective on `data` is always in place.
    for in_place in (False,) if contract.blocks is None else (False, True):
        verify(plans, contract, in_place=in_place)
