"""Users' algorithms in a communicator: checks that all ranks have the same, and proves them.

`algorithms/custom.py` makes them. A communicator with such algorithms calls `agree` before its
first call. Every rank writes its own plans once, and sends their digests to all. The proof needs
the plans of all ranks; one rank proves each root, and compares the proved plans with the others'
digests. A rank keeps its plans for all calls: a function is not called again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes, Plan, PlanBuilder
from hccl_py.plan.progress import PERIOD_S, ProofProgress
from hccl_py.transport.errors import InvalidArgumentError

Gather = Callable[[Any, Any], Any]
"""An all_gather of arrays among the ranks: output, input."""

_PURE = (
    "a function must depend on nothing but `me`, `n` and `plan`: no setting that changes, no "
    "counter, no random numbers"
)


class _Case(NamedTuple):
    algorithm: CustomAlgorithm
    root: int | None


def agree(
    algorithms: Sequence[CustomAlgorithm], rank: int, nodes: Nodes, first: str, gather: Gather
) -> tuple[CustomAlgorithm, ...]:
    """Prove the algorithms that serve these nodes; return them with the plans to run.

    All ranks call it, and all raise the same error if one rank finds something wrong.

    Args:
        algorithms: this rank's algorithms.
        rank: this rank.
        nodes: the communicator's nodes.
        first: the names of rank 0's algorithms, for messages.
        gather: an all_gather among the ranks.

    Raises:
        InvalidArgumentError: the ranks have different algorithms, or one is wrong.
    """
    n, cases = count_ranks(nodes), list[_Case]()
    problem = _problem_of(lambda: cases.extend(_cases(algorithms, nodes)))
    problem = problem and f"rank {rank}: {problem}"
    given = np.array([_digest(repr([_rules(one) for one, _ in cases]))])
    everyone = np.zeros(n, np.int64)
    gather(everyone, given)
    if not problem and everyone[0] != given[0]:
        problem = (
            f"rank {rank} was given {', '.join(map(str, algorithms)) or 'no algorithm'}, rank 0 "
            f"{first}, or their rules differ; give all ranks the same"
        )
    _raise_first(problem, n, gather)
    own, problem = _write(cases, rank, nodes)
    mine = np.zeros((len(cases), 2), np.int64)
    for at, plan in enumerate(own):
        mine[at] = _digest_of(plan), plan.span
    written = np.zeros((n, *mine.shape), np.int64)
    gather(written, mine)
    _raise_first(problem, n, gather)
    for at in range(rank, len(cases), n):
        prove = partial(_prove, cases[at], nodes, own[at], written[:, at, 0].tolist())
        problem = problem or _problem_of(prove)
    _raise_first(problem, n, gather)
    return _with_plans(cases, own, written[:, :, 1].max(0).tolist())


def _write(cases: Sequence[_Case], rank: int, nodes: Nodes) -> tuple[list[Plan], str]:
    """Write this rank's plan of each case, or return the problem."""
    plans = list[Plan]()
    with _progress(rank) as progress:
        for case in cases:
            progress.now = partial("{} writes a plan".format, case.algorithm)
            write = partial(case.algorithm.plan, rank, nodes, case.root)
            if problem := _problem_of(lambda write=write: plans.append(write())):  # type: ignore[misc]
                return plans, problem
    return plans, ""


def _cases(algorithms: Sequence[CustomAlgorithm], nodes: Nodes) -> list[_Case]:
    n, cases = count_ranks(nodes), list[_Case]()
    for one in algorithms:
        if one.serves(nodes):
            settled = one.settled(nodes)
            roots = range(n) if COLLECTIVES[one.collective].rooted else (None,)
            cases += [_Case(settled, root) for root in roots]
    return cases


def _progress(rank: int) -> ProofProgress:
    """Return a progress log: rank 0's for all ranks, the others' only if they are slow."""
    return ProofProgress(f"rank {rank}:", PERIOD_S if rank == 0 else 6 * PERIOD_S)


def _prove(case: _Case, nodes: Nodes, own: Plan, digests: Sequence[int]) -> None:
    """Write the other ranks' plans, compare them with the ranks' own, and prove all."""
    algorithm, root = case
    plans = list[Plan]()
    with _progress(own.rank) as progress:
        for owner, digest in enumerate(digests):
            progress.now = partial("{} writes the plan of rank {}".format, algorithm, owner)
            plan = own if owner == own.rank else algorithm.plan(owner, nodes, root)
            if _digest_of(plan) != digest:
                raise InvalidArgumentError(_unlike(algorithm, own.rank, plan, nodes))
            plans.append(plan)
        algorithm.prove(plans, nodes, progress)


def _unlike(algorithm: CustomAlgorithm, rank: int, plan: Plan, nodes: Nodes) -> str:
    """Explain why a rank's plan may differ from the one that another rank wrote for it."""
    owner = plan.rank
    again = algorithm.plan(owner, nodes, plan.root)
    if again == plan:
        return (
            f"{algorithm}: rank {owner} has another function than rank {rank}, or one that reads "
            f"what differs there: their plans of rank {owner} differ; {_PURE}; give all ranks the "
            "same file"
        )
    ops = enumerate(zip_longest(plan.ops, again.ops, fillvalue="nothing"))
    at, (one, other) = next((at, two) for at, two in ops if two[0] != two[1])
    return (
        f"{algorithm} writes another plan each time: as op {at} of rank {owner} first `{one}`, "
        f"then `{other}`; {_PURE}"
    )


def _problem_of(attempt: Callable[[], object]) -> str:
    """Return the message of an attempt's exception, so that this rank continues to the exchange."""
    try:
        attempt()
    except InvalidArgumentError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _raise_first(problem: str, n: int, gather: Gather) -> None:
    """Raise the problem of the lowest rank that has one, on all ranks."""
    text = np.frombuffer(problem.encode(), np.uint8)
    lengths = np.zeros(n, np.int64)
    gather(lengths, np.array([text.size]))
    if not lengths.any():
        return
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: text.size] = text
    texts = np.zeros((n, padded.size), np.uint8)
    gather(texts, padded)
    at = int(lengths.nonzero()[0][0])
    raise InvalidArgumentError(texts[at, : lengths[at]].tobytes().decode())


def _rules(one: CustomAlgorithm) -> tuple[object, ...]:
    chunks = one.entry.data_chunks(())  # settled: it does not depend on the nodes
    return str(one), one.min_bytes, one.max_bytes, one.entry.equal_blocks, chunks


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")


def _digest_of(plan: Plan) -> int:
    return _digest(f"{plan}{plan.shape}{plan.steps}")


def _with_plans(
    cases: Sequence[_Case], plans: Sequence[Plan], spans: Sequence[int]
) -> tuple[CustomAlgorithm, ...]:
    """Return the algorithms of the cases, restricted to these plans."""
    kept: dict[CustomAlgorithm, dict[int | None, Plan]] = {}
    widest: dict[CustomAlgorithm, int] = {}
    for (one, root), plan, span in zip(cases, plans, spans, strict=True):
        kept.setdefault(one, {})[root] = plan
        widest[one] = max(span, widest.get(one, 1))
    return tuple(_repeating(one, by_root, widest[one]) for one, by_root in kept.items())


def _repeating(
    algorithm: CustomAlgorithm, plans: Mapping[int | None, Plan], span: int
) -> CustomAlgorithm:
    def repeat(_me: int, _n: int, builder: PlanBuilder) -> None:
        builder.repeat(plans[builder.root if None not in plans else None])

    entry = algorithm.entry._replace(write=repeat, max_span=lambda _nodes: span)
    return replace(algorithm, entry=entry)
