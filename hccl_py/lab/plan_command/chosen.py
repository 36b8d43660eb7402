"""What the command line names: an algorithm, of the table or of a user's file, on some nodes."""

from collections.abc import Iterator
from typing import NamedTuple

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.loading import loaded
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS, Algorithm, names_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError


def algorithm_named(text: str) -> CustomAlgorithm:
    """Return `all_reduce=ring` of the table, or `mine.py:ring` or `plan:FILE`; all the same way.

    Raise InvalidArgumentError if there is none of this name.
    """
    collective, equals, name = text.rpartition("=")
    if ":" in name:
        return loaded(name, collective if equals else None)
    if (collective, name) not in ALGORITHMS:
        valid = "; ".join(f"{one}={', '.join(names_for(one))}" for one in COLLECTIVES)
        raise InvalidArgumentError(
            f"expected FILE:FUNCTION, plan:FILE or one of {valid}; got {text!r}"
        )
    entry = ALGORITHMS[collective, name]
    return CustomAlgorithm(collective, name, entry, _cost(entry), 0, None, None)


def every_algorithm() -> Iterator[CustomAlgorithm]:
    """Yield the table."""
    for collective, name in ALGORITHMS:
        yield algorithm_named(f"{collective}={name}")


def nodes_of(text: str) -> Nodes:
    """Read `4,4`: the number of ranks of each node, ranks in order.

    Raise InvalidArgumentError for anything else.
    """
    sizes = text.split(",")
    if not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
        raise InvalidArgumentError(f"expected ranks of each node such as 4,4; got {text!r}")
    nodes: list[tuple[int, ...]] = []
    for size in map(int, sizes):
        begin = sum(map(len, nodes))
        nodes.append(tuple(range(begin, begin + size)))
    return tuple(nodes)


class Where(NamedTuple):
    """Ranks on nodes, and the root of a rooted collective."""

    nodes: Nodes
    root: int | None

    def __str__(self) -> str:
        sizes = ",".join(str(len(node)) for node in self.nodes)
        return f"{count_ranks(self.nodes)} ranks, nodes {sizes}" + (
            "" if self.root is None else f", root {self.root}"
        )


def _cost(entry: Algorithm) -> str:
    text = entry.write.__doc__ or ""
    cost = text.partition("Cost:")[2].partition("Source:")[0]
    return " ".join(cost.split()).partition(". ")[0].rstrip(".")
