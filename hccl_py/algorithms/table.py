"""Every algorithm by collective and name, and how to get its plans.

All of them take any number of ranks, any nodes and any root. One that cannot would have to say so
in its entry here, next to the chunk count, and the tuner would have to ask.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc

from hccl_py.algorithms import (
    direct,
    dissemination,
    halving_doubling,
    hierarchical,
    mesh,
    one_shot,
    ring,
    tree,
)
from hccl_py.plan import Nodes, PlanBuilder

Write = Callable[[int, int, PlanBuilder], None]
"""Writes the plan of rank `me` of `n`."""


def _one(_nodes: Nodes) -> int:
    return 1


def _two(_nodes: Nodes) -> int:
    return 2


def _per_rank(nodes: Nodes) -> int:
    return sum(len(node) for node in nodes)


@dataclass(frozen=True)
class Algorithm:
    """An entry of the table.

    Attributes:
        write: the algorithm itself.
        data_chunks: into how many chunks it cuts `data`; without effect where there are blocks.
        max_span: most chunks of `data` in one op of any rank. The engine cuts tiles so that such an
            op fits one message, and all ranks have to cut the same tiles.
    """

    write: Write
    data_chunks: Callable[[Nodes], int]
    max_span: Callable[[Nodes], int] = _one

    @property
    def summary(self) -> str:
        """The first line of the algorithm's docstring."""
        return (getdoc(self.write) or "").partition("\n")[0]


ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("all_reduce", "one_shot"): Algorithm(one_shot.all_reduce, _one),
    ("all_reduce", "mesh"): Algorithm(mesh.all_reduce, _per_rank),
    ("all_reduce", "ring"): Algorithm(ring.all_reduce, _per_rank),
    ("all_reduce", "tree"): Algorithm(tree.all_reduce, _two),
    ("all_reduce", "halving_doubling"): Algorithm(
        halving_doubling.all_reduce, halving_doubling.chunks, halving_doubling.max_span
    ),
    ("all_reduce", "hierarchical"): Algorithm(
        hierarchical.all_reduce,
        hierarchical.all_reduce_chunks,
        hierarchical.all_reduce_max_span,
    ),
    ("broadcast", "direct"): Algorithm(direct.broadcast, _one),
    ("broadcast", "mesh"): Algorithm(mesh.broadcast, _per_rank),
    ("broadcast", "tree"): Algorithm(tree.broadcast, _one),
    ("broadcast", "hierarchical"): Algorithm(
        hierarchical.broadcast, hierarchical.owners_per_node, hierarchical.owners_per_node
    ),
    ("reduce", "direct"): Algorithm(direct.reduce, _one),
    ("reduce", "mesh"): Algorithm(mesh.reduce, _per_rank),
    ("reduce", "tree"): Algorithm(tree.reduce, _one),
    ("reduce", "hierarchical"): Algorithm(hierarchical.reduce, hierarchical.owners_per_node),
    ("all_gather", "mesh"): Algorithm(mesh.all_gather, _one),
    ("all_gather", "ring"): Algorithm(ring.all_gather, _one),
    ("all_gather", "hierarchical"): Algorithm(hierarchical.all_gather, _one),
    ("reduce_scatter", "mesh"): Algorithm(mesh.reduce_scatter, _one),
    ("reduce_scatter", "ring"): Algorithm(ring.reduce_scatter, _one),
    ("reduce_scatter", "hierarchical"): Algorithm(hierarchical.reduce_scatter, _one),
    ("all_to_all", "direct"): Algorithm(direct.all_to_all, _one),
    ("gather", "direct"): Algorithm(direct.gather, _one),
    ("scatter", "direct"): Algorithm(direct.scatter, _one),
    ("barrier", "dissemination"): Algorithm(dissemination.barrier, _one),
}
"""Every algorithm."""


def names_for(collective: str) -> tuple[str, ...]:
    """Return the names of the algorithms for a collective."""
    return tuple(name for owner, name in ALGORITHMS if owner == collective)
