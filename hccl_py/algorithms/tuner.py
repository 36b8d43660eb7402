"""Which algorithm for how many bytes on which nodes: one table, first fitting row wins.

`HCCL_ALGORITHM` overrides it: `ring` for every collective that has a `ring`, or
`all_reduce=ring,broadcast=tree`. All ranks must be given the same.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hccl_py.algorithms import ALGORITHMS, names_for
from hccl_py.algorithms.topology import Topology
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.transport.errors import InvalidArgumentError

VARIABLE = "HCCL_ALGORITHM"
"""Name of the environment variable."""


@dataclass(frozen=True)
class Row:
    """A line of the table; a limit of None always fits.

    Attributes:
        collective: for what.
        algorithm: what to take.
        many_nodes: whether the row is for several nodes or for one.
        max_ranks: up to this world size.
        max_bytes: up to this size, a power of two.
    """

    collective: str
    algorithm: str
    many_nodes: bool = False
    max_ranks: int | None = None
    max_bytes: int | None = None


TABLE = (
    # With n ranks, one_shot reads and reduces n-1 times the data in every rank, mesh less than
    # twice; so the more ranks, the sooner mesh's second step pays.
    Row("all_reduce", "one_shot", max_ranks=2, max_bytes=1 << 16),
    Row("all_reduce", "one_shot", max_ranks=4, max_bytes=1 << 15),
    Row("all_reduce", "one_shot", max_ranks=8, max_bytes=1 << 14),
    Row("all_reduce", "one_shot", max_ranks=16, max_bytes=1 << 12),
    Row("all_reduce", "mesh"),
    # Every message on the wire costs both kernels microseconds: even 4 bytes go faster through one
    # owner per node than from everyone to everyone.
    Row("all_reduce", "hierarchical", many_nodes=True),
    # Shared memory writes a payload once for all readers, so the root's one send is the cheapest.
    Row("broadcast", "direct"),
    Row("broadcast", "hierarchical", many_nodes=True),
    Row("reduce", "direct", max_bytes=1 << 14),
    Row("reduce", "mesh"),
    Row("reduce", "hierarchical", many_nodes=True),
    Row("all_gather", "mesh"),
    Row("all_gather", "hierarchical", many_nodes=True),
    Row("reduce_scatter", "mesh"),
    Row("reduce_scatter", "hierarchical", many_nodes=True),
    Row("all_to_all", "direct"),
    Row("all_to_all", "direct", many_nodes=True),
    Row("gather", "direct"),
    Row("gather", "direct", many_nodes=True),
    Row("scatter", "direct"),
    Row("scatter", "direct", many_nodes=True),
    Row("barrier", "dissemination"),
    Row("barrier", "dissemination", many_nodes=True),
)
"""The defaults."""


def size_class(num_bytes: int) -> int:
    """Return the class of a size: class c holds 2^(c-1) + 1 up to 2^c bytes, class 0 also none."""
    return (num_bytes - 1).bit_length() if num_bytes else 0


_IN_ONE_STEP = ("one_shot", "mesh", "direct")


def choose(
    collective: str,
    num_bytes: int,
    topology: Topology,
    environ: Mapping[str, str] = os.environ,
    *,
    in_one_step: bool = False,
) -> str:
    """Name the algorithm for a call; the same for all sizes of one `size_class`.

    Args:
        collective: name, as in `COLLECTIVES`.
        num_bytes: size of `data`; of all n blocks, for a collective on blocks. Must be the same on
            all ranks; where it cannot be (all_to_all, gather, scatter) the table does not ask.
        topology: all ranks and their nodes.
        environ: where to look for `HCCL_ALGORITHM`.
        in_one_step: whether nothing but one rank may reduce a chunk, with all ranks' values at
            hand; then `HCCL_ALGORITHM` counts only where it names such an algorithm.

    Raises:
        InvalidArgumentError: if `HCCL_ALGORITHM` names something that there is not.
    """
    forced = _overrides(environ.get(VARIABLE, "")).get(collective)
    if forced is not None and (forced in _IN_ONE_STEP or not in_one_step):
        return forced
    many_nodes = topology.node_count > 1 and not in_one_step
    largest_of_class = 1 << size_class(num_bytes)
    for row in TABLE:
        if (
            row.collective == collective
            and row.many_nodes == many_nodes
            and (row.max_ranks is None or topology.world_size <= row.max_ranks)
            and (row.max_bytes is None or largest_of_class <= row.max_bytes)
        ):
            return row.algorithm
    raise InvalidArgumentError(
        f"collective: expected one of {', '.join(COLLECTIVES)}, got {collective!r}"
    )


def min_message_bytes(topology: Topology) -> int:
    """Say up to which size a message is better sent whole than cut to keep more channels busy.

    Shared memory costs next to nothing per message. On a wire every message costs both kernels
    about 5 us; where nothing but the wire is at work, cutting gains nothing to pay for that.
    """
    if topology.node_count == 1:
        return 16 << 10
    return 128 << 10 if topology.world_size == topology.node_count else 32 << 10


def _overrides(text: str) -> dict[str, str]:
    """Read `HCCL_ALGORITHM` into algorithm by collective."""
    chosen: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        collective, equals, name = (word.strip() for word in item.rpartition("="))
        owners = [collective] if equals else list(COLLECTIVES)
        having = [owner for owner in owners if (owner, name) in ALGORITHMS]
        if not having:
            valid = "; ".join(f"{owner}: {', '.join(names_for(owner))}" for owner in COLLECTIVES)
            raise InvalidArgumentError(f"{VARIABLE}: there is no {item!r}; there are {valid}")
        chosen.update(dict.fromkeys(having, name))
    return chosen
