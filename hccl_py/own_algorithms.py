"""Algorithms that users write, in a communicator: all ranks have the same, and they are right.

`algorithms/custom.py` makes them. A communicator that was given some calls `agree` before its first
call. Every rank writes its own plans and sends their digests to all. The proof needs the plans of
all ranks; each root is proved by one rank, which compares what it proved with what the others run.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes, Plan
from hccl_py.transport.errors import InvalidArgumentError

Gather = Callable[[Any, Any], Any]
"""An all_gather of arrays among the ranks: output, input."""


class _Case(NamedTuple):
    algorithm: CustomAlgorithm
    root: int | None


def agree(
    algorithms: Sequence[CustomAlgorithm], rank: int, nodes: Nodes, first: str, gather: Gather
) -> tuple[CustomAlgorithm, ...]:
    """Prove those of the algorithms that serve these nodes; return them, ready for plans.

    All ranks call it, and all raise the same error if one rank finds something wrong.

    Args:
        algorithms: of this rank.
        rank: this one.
        nodes: of the communicator.
        first: the names of rank 0's algorithms, for messages.
        gather: an all_gather among the ranks.

    Raises:
        InvalidArgumentError: the ranks have different algorithms, or one is wrong.
    """
    n, problem, cases = count_ranks(nodes), "", list[_Case]()
    try:
        serving = [one for one in algorithms if one.serves(nodes)]
        cases = [_Case(one, root) for one in serving for root in _roots(one, n)]
    except InvalidArgumentError as error:
        problem = str(error)
    rules = [(str(one), one.min_bytes, one.max_bytes, one.entry.equal_blocks) for one, _ in cases]
    given = np.array([_digest(repr(rules))])
    everyone = np.zeros(n, np.int64)
    gather(everyone, given)
    if not problem and everyone[0] != given[0]:
        problem = (
            f"rank {rank} was given {', '.join(map(str, algorithms)) or 'no algorithm'}, rank 0 "
            f"{first}, or their rules differ; give all ranks the same"
        )
    _raise_first(problem, n, gather)
    mine = np.zeros((len(cases), 2), np.int64)
    for at, case in enumerate(cases):
        try:
            plan = case.algorithm.plan(rank, nodes, case.root)
            mine[at] = _digest_of(plan), plan.span
        except InvalidArgumentError as error:
            problem = problem or str(error)
    written = np.zeros((n, *mine.shape), np.int64)
    gather(written, mine)
    for at in range(rank, len(cases), n):
        problem = problem or _problem(cases[at], nodes, rank, written[:, at, 0].tolist())
    _raise_first(problem, n, gather)
    spans: dict[CustomAlgorithm, int] = {}
    for (one, _), span in zip(cases, written[:, :, 1].max(0), strict=True):
        spans[one] = max(int(span), spans.get(one, 1))
    return tuple(_with_span(one, span) for one, span in spans.items())


def _problem(case: _Case, nodes: Nodes, rank: int, digests: Sequence[int]) -> str:
    algorithm, root = case
    try:
        for owner, digest in enumerate(digests):
            if _digest_of(algorithm.plan(owner, nodes, root)) != digest:
                return (
                    f"{algorithm}: rank {owner} has another function than rank {rank}: their plans "
                    f"of rank {owner} differ; give all ranks the same file"
                )
        algorithm.verify(nodes, root)
    except InvalidArgumentError as error:
        return str(error)
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


def _roots(algorithm: CustomAlgorithm, n: int) -> Sequence[int | None]:
    return range(n) if COLLECTIVES[algorithm.collective].rooted else (None,)


def _digest(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big")


def _digest_of(plan: Plan) -> int:
    return _digest(f"{plan}{plan.shape}{plan.steps}")


def _with_span(algorithm: CustomAlgorithm, span: int) -> CustomAlgorithm:
    return replace(algorithm, entry=algorithm.entry._replace(max_span=lambda _nodes: span))
