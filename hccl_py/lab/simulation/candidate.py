"""What is simulated: an algorithm of the table by name, or plans that somebody has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.table import ALGORITHMS, names_for, plan_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Buffer, Nodes, Plan
from hccl_py.transport.errors import InvalidArgumentError

What = str | CustomAlgorithm | Sequence[Plan]
"""An algorithm by name or as a user wrote it, or the plans of all ranks."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm for some nodes: a plan for each rank, written when it is asked for."""

    name: str
    span: int  # most chunks in one op of any rank
    write: Callable[[int], Plan]
    long_messages: bool = False  # as an algorithm's entry has it


def candidate_of(what: What, nodes: Nodes, root: int | None) -> Candidate:
    """Find what is meant.

    Args:
        what: `all_reduce=ring` or `mine.py:ring`, as in HCCL_ALGORITHM; a function under
            `@hccl_py.algorithm`; or the plans of all ranks.
        nodes: the ranks.
        root: of a rooted collective; None: rank 0.

    Raises:
        InvalidArgumentError: there is no such algorithm, or plans are of other ranks.
    """
    if isinstance(what, str) and ":" in what:
        owner, equals, place = what.rpartition("=")
        what = loaded(place, owner if equals else None)
    if isinstance(what, str):
        return _named(what, nodes, root)
    if isinstance(what, CustomAlgorithm):
        is_rooted = COLLECTIVES[what.collective].rooted
        what = what.plans(nodes, (root or 0) if is_rooted else None)
    num_ranks = sum(map(len, nodes))
    if [plan.rank for plan in what] != list(range(num_ranks)) or not what:
        raise InvalidArgumentError(
            f"plans: expected those of the ranks 0..{num_ranks - 1} in order, got {len(what)}"
        )
    span = max(plan.span for plan in what)
    return Candidate(f"{what[0].collective}={what[0].algorithm}", span, what.__getitem__)


def _named(what: str, nodes: Nodes, root: int | None) -> Candidate:
    collective, _, name = what.partition("=")
    if (collective, name) not in ALGORITHMS:
        known = ", ".join(names_for(collective)) or f"collectives: {', '.join(COLLECTIVES)}"
        raise InvalidArgumentError(
            f"{what!r}: expected COLLECTIVE=ALGORITHM such as all_reduce=ring; there are {known}"
        )
    if COLLECTIVES[collective].rooted and root is None:
        root = 0
    entry = ALGORITHMS[collective, name]
    write = partial(_plan, collective, name, nodes, root)
    return Candidate(what, entry.max_span(nodes), write, entry.long_messages(nodes))


def _plan(collective: str, name: str, nodes: Nodes, root: int | None, rank: int) -> Plan:
    return plan_for(collective, name, rank, nodes, root)


def count_elements(plan: Plan, num_bytes: int, item_bytes: int) -> int:
    """Return the elements of `data`, or of a block, where the whole has `num_bytes`."""
    elements = num_bytes // item_bytes
    return elements if plan.shape[Buffer.DATA] else -(-elements // plan.world_size)
