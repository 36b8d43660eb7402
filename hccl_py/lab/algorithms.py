"""Algorithms by name, of the table or of a user's file, and nodes by their sizes."""

from collections.abc import Iterable
from itertools import count, islice

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.table import ALGORITHMS, Algorithm, names_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

MOST_RANKS = 1 << 18
"""Most ranks of a command or a simulation."""


def algorithm_named(text: str) -> CustomAlgorithm:
    """Return the algorithm of `all_reduce=ring` (of the table), `mine.py:ring` or `plan:FILE`.

    Raises:
        InvalidArgumentError: there is no algorithm of this name.
    """
    collective, equals, name = text.rpartition("=")
    if ":" in name:
        return loaded(name, collective if equals else None)
    if (collective, name) not in ALGORITHMS:
        valid = "those that hccl-plan list prints"
        if collective in COLLECTIVES:
            valid = f"{collective}={', '.join(names_for(collective))}"
        raise InvalidArgumentError(
            f"algorithm: expected FILE:FUNCTION, plan:FILE or one of {valid}; got {text!r}"
        )
    entry = ALGORITHMS[collective, name]
    return CustomAlgorithm(collective, name, entry, _cost(entry), 0, None, None)


def nodes_of(sizes: Iterable[int]) -> Nodes:
    """Return nodes of the given numbers of ranks, ranks in order."""
    ranks = count()
    return tuple(tuple(islice(ranks, size)) for size in sizes)


def _cost(entry: Algorithm) -> str:
    text = entry.write.__doc__ or ""
    cost = text.partition("Cost:")[2].partition("Source:")[0]
    return " ".join(cost.split()).partition(". ")[0].rstrip(".")
