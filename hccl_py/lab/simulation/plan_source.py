"""The source of plans: an algorithm by name, or written plans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS, write_plan
from hccl_py.lab.algorithms import algorithm_named
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes, Plan
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import InvalidArgumentError

What = str | CustomAlgorithm | Sequence[Plan]
"""An algorithm by name, a user's algorithm, or the plans of all ranks."""


@dataclass(frozen=True)
class PlanSource:
    """An algorithm for some nodes: a plan for each rank, written on request."""

    name: str
    span: int  # most chunks in one op of any rank
    write: Callable[[int], Plan]
    long_messages: bool = False  # see the algorithm's entry in the table


def plan_source_of(what: What, nodes: Nodes, root: int | None) -> PlanSource:
    """Return the source of the plans of `what`.

    Args:
        what: `all_reduce=ring` or `mine.py:ring`, as in HCCL_ALGORITHM; a function under
            `@hccl_py.algorithm`; or the plans of all ranks.
        nodes: the ranks.
        root: of a rooted collective; None: rank 0.

    Raises:
        InvalidArgumentError: there is no such algorithm or root, or plans are for other ranks.
    """
    n = count_ranks(nodes)
    if isinstance(what, str):
        what = algorithm_named(what)
    if isinstance(what, CustomAlgorithm):
        named, root = what, (root or 0) if COLLECTIVES[what.collective].rooted else None
        if (entry := ALGORITHMS.get((named.collective, named.name))) is not None:
            span, is_long = entry.max_span(nodes), entry.long_messages(nodes)
            head = Plan(named.collective, named.name, 0, n, root)

            def write(me: int) -> Plan:
                return write_plan(entry, replace(head, rank=me), nodes)

            return PlanSource(str(named), span, write, is_long)
        what = named.plans(nodes, root)
    if not isinstance(what, list | tuple) or not all(isinstance(one, Plan) for one in what):
        raise wrong("what", "an algorithm, its name or the plans of all ranks", what)
    if [plan.rank for plan in what] != list(range(n)) or not what:
        raise InvalidArgumentError(
            f"plans: expected those of the ranks 0..{n - 1} in order, got {len(what)}"
        )
    span = max(plan.span for plan in what)
    return PlanSource(f"{what[0].collective}={what[0].algorithm}", span, what.__getitem__)
