"""The ranks and nodes for which the table's algorithms are proved before a release.

`tests/lab/test_bound.py` proves each algorithm for all of them, and `hccl-plan check
--bound` one of yours.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate, product

from hccl_py.plan.language import Nodes, Plan

MOST_RANKS = 64
MOST_NODES = MOST_OF_A_NODE = 4
MOST_WITH_EVERY_ROOT = 16

TEXT = (
    f"1 to {MOST_RANKS} ranks on one node, and on a node each; every split of up to {MOST_NODES} "
    f"nodes of up to {MOST_OF_A_NODE} ranks"
)
ROOTS_TEXT = f"each root of up to {MOST_WITH_EVERY_ROOT} ranks, and four roots of more"


def worlds(most_ranks: int = MOST_RANKS) -> Iterator[tuple[int, list[Nodes]]]:
    """Yield every number of ranks, with its nodes."""
    splits = defaultdict[int, list[Nodes]](list)
    for number in range(1, MOST_NODES + 1):
        for sizes in product(range(1, MOST_OF_A_NODE + 1), repeat=number):
            ends = accumulate(sizes)
            nodes = tuple(
                tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)
            )
            splits[sum(sizes)].append(nodes)
    for n in range(1, most_ranks + 1):
        one_node, one_each = (tuple(range(n)),), tuple((rank,) for rank in range(n))
        yield n, list(dict.fromkeys([one_node, one_each, *splits[n]]))


def roots(n: int, rooted: bool) -> tuple[int | None, ...]:
    """Return the roots that are proved among `n` ranks."""
    if not rooted:
        return (None,)
    return tuple(range(n)) if n <= MOST_WITH_EVERY_ROOT else (0, 1, n // 2, n - 1)


class Proved:
    """The plans that are proved, so that plans that do not depend on the nodes are proved once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | None], list[tuple[object, ...]]] = {}

    def is_new(self, plans: tuple[Plan, ...], *ways: object) -> bool:
        """Note plans and the ways in which they run; False: they are known."""
        known = self._known.setdefault((len(plans), plans[0].root), [])
        if (plans, *ways) in known:
            return False
        known.append((plans, *ways))
        return True
