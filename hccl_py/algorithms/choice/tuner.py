"""The choice of an algorithm by bytes and nodes: one table, whose first fitting row wins.

A file of `hccl-bench --tune` replaces the table, see `tuning.py`. `HCCL_ALGORITHM` overrides both:
`ring` for every collective that has a `ring`, or `all_reduce=ring,all_to_all=leader@64K`, where the
second is for calls of up to 64 KB. All ranks must have the same value.
`all_reduce=path/to/mine.py:mine` names an algorithm of `custom.py`.
"""

import math
import os
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from hccl_py.algorithms.choice.tuning import Tuning
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.algorithms.table import ALGORITHMS, names_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.quantities import read_size
from hccl_py.transport.errors import InvalidArgumentError

VARIABLE = "HCCL_ALGORITHM"
_WORTH_A_CHANGE = {"measured": 1.03, "predicted": 1.1}
"""Slowdown above which the table's choice is replaced: less may be noise."""
UNKNOWN_SIZE = ("all_to_all", "gather", "scatter")
"""Collectives in which a rank does not know the other ranks' sizes."""


class ChoiceRow(NamedTuple):
    """A line of the table; a limit of None always fits."""

    collective: str
    algorithm: str
    many_nodes: bool | None = False  # True: several nodes; False: one; None: both
    max_ranks: int | None = None
    max_bytes: int | None = None  # a power of two
    max_cores: int | None = None  # that all ranks together may use
    if_crowded: bool = False  # only if there are more ranks than cores


class Cores(NamedTuple):
    """The cores that the ranks may use; equal on all ranks."""

    shared: int | None = None  # by all ranks, on one host; None: unknown, or several hosts
    crowded: bool = False  # some host has more ranks than cores


UNKNOWN_CORES = Cores()


class Choice(NamedTuple):
    """An algorithm, the reason in words, and the size classes for which the choice is the same."""

    algorithm: str
    why: str
    classes: range


def _few_messages(collective: str) -> tuple[ChoiceRow, ChoiceRow]:
    return (
        ChoiceRow(collective, "leader", many_nodes=True, max_bytes=1 << 14),
        ChoiceRow(collective, "leader", many_nodes=True, max_bytes=1 << 16, if_crowded=True),
    )


TABLE = (
    # With n ranks, one_shot reads and reduces n-1 times the data in every rank, mesh less than
    # twice; so mesh's second step pays from fewer bytes on with more ranks. Where ranks share
    # cores, each rank has to be scheduled once more for it. On 16 cores, 16 KB of
    # 8 ranks took 24 us with one_shot and 13 with mesh.
    ChoiceRow("all_reduce", "one_shot", max_ranks=2, max_bytes=1 << 16),
    ChoiceRow("all_reduce", "one_shot", max_ranks=4, max_bytes=1 << 12),
    ChoiceRow("all_reduce", "one_shot", max_ranks=16, max_bytes=1 << 11),
    ChoiceRow("all_reduce", "one_shot", max_ranks=4, max_bytes=1 << 15, if_crowded=True),
    ChoiceRow("all_reduce", "one_shot", max_ranks=8, max_bytes=1 << 14, if_crowded=True),
    ChoiceRow("all_reduce", "one_shot", max_ranks=16, max_bytes=1 << 12, if_crowded=True),
    # For two ranks one_shot is 1.1 to 1.4 times as fast from 4 MB on, but in registered memory 1.5
    # to 2.5 times as slow: a rank must not overwrite data that the peer has yet to read.
    ChoiceRow("all_reduce", "mesh"),
    # Every message on the wire costs both kernels microseconds. One message per node is fastest as
    # long as parallel ones save nothing, as among ranks that share cores. With hierarchical, 8
    # ranks on 2 hosts with 2 cores in all took 1.2 to 1.8 times as long for 64 KiB, and 1.8 to 3.7
    # times for 1 KiB.
    *_few_messages("all_reduce"),
    ChoiceRow("all_reduce", "hierarchical", many_nodes=True),
    # One payload in shared memory serves all readers, so the root's single send is the cheapest.
    ChoiceRow("broadcast", "direct"),
    *_few_messages("broadcast"),
    ChoiceRow("broadcast", "hierarchical", many_nodes=True),
    # A root with one peer reads as much as with mesh, and no rank waits.
    ChoiceRow("reduce", "direct", max_ranks=2),
    ChoiceRow("reduce", "direct", max_ranks=8, max_bytes=1 << 14),
    ChoiceRow("reduce", "direct", max_bytes=1 << 13),
    # mesh shares the reduction, which needs cores. On 2 cores, from 64 KiB to 64 MiB, 4 ranks took
    # 1.5 to 2.2 times as long with it, and 8 ranks 0.9 to 2.6 times.
    ChoiceRow("reduce", "direct", max_cores=2),
    ChoiceRow("reduce", "mesh"),
    *_few_messages("reduce"),
    ChoiceRow("reduce", "hierarchical", many_nodes=True),
    ChoiceRow("all_gather", "mesh"),
    *_few_messages("all_gather"),
    ChoiceRow("all_gather", "hierarchical", many_nodes=True),
    ChoiceRow("reduce_scatter", "mesh"),
    *_few_messages("reduce_scatter"),
    ChoiceRow("reduce_scatter", "hierarchical", many_nodes=True),
    ChoiceRow("all_to_all", "direct", many_nodes=None),
    ChoiceRow("gather", "direct", many_nodes=None),
    ChoiceRow("scatter", "direct", many_nodes=None),
    ChoiceRow("barrier", "one_shot", max_ranks=64),
    ChoiceRow("barrier", "dissemination"),
    ChoiceRow("barrier", "leader", many_nodes=True),
)


def size_class(num_bytes: int) -> int:
    """Return the class of a size: class c holds 2^(c-1) + 1 up to 2^c bytes, class 0 also none."""
    return (num_bytes - 1).bit_length() if num_bytes else 0


_NUM_CLASSES = 65
"""Of sizes below 2^64."""


def _end(max_bytes: float | None) -> int:
    """Return the number of classes whose largest size fits this limit."""
    return _NUM_CLASSES if max_bytes in (None, math.inf) else int(max_bytes).bit_length()


def choose(
    collective: str,
    num_bytes: int,
    nodes: Nodes,
    environ: Mapping[str, str] = os.environ,
    *,
    in_one_step: bool = False,
    equal_blocks: bool = True,
    compressed: bool = False,
    root: int | None = None,
    cores: Cores = UNKNOWN_CORES,
    tuning: Tuning | None = None,
) -> Choice:
    """Choose the algorithm for a call.

    Args:
        num_bytes: size of `data`, or of all n blocks. Must be the same on all ranks, except for
            `UNKNOWN_SIZE`, where neither table nor tuning uses it.
        in_one_step: whether one rank must reduce a chunk from all ranks' values in rank order;
            `HCCL_ALGORITHM` then applies only if it names such an algorithm.
        equal_blocks: whether all ranks know that all blocks have one length; else `HCCL_ALGORITHM`
            applies only if its algorithm does not need that.
        compressed: whether messages between nodes are compressed; `HCCL_ALGORITHM` then applies
            only if its algorithm permits that.
        root: of a rooted collective; used by a tuning only.
        cores: must be the same on all ranks.
        tuning: from rank 0, the same on all ranks; None: the table decides.

    Raise InvalidArgumentError if `HCCL_ALGORITHM` names an unknown algorithm.
    """

    def fits(name: str) -> bool:
        entry = ALGORITHMS[collective, name]
        return (
            (entry.in_rank_order or not in_one_step)
            and (equal_blocks or not entry.equal_blocks)
            and (entry.compressible or not compressed)
        )

    own, first = size_class(num_bytes), 0
    for max_bytes, forced in overrides(environ.get(VARIABLE, "")).get(collective, ()):
        if fits(forced):
            classes = range(first, _end(max_bytes))
            if own in classes:
                return Choice(forced, f"{VARIABLE} says so", classes)
            first = max(first, classes.stop)
    many_nodes = len(nodes) > 1 and not in_one_step
    world_size = count_ranks(nodes)
    for row in TABLE:
        if (
            row.collective == collective
            and row.many_nodes in (many_nodes, None)
            and fits(row.algorithm)
            and (row.max_ranks is None or world_size <= row.max_ranks)
            and (
                row.max_cores is None
                or (cores.shared is not None and cores.shared <= row.max_cores)
            )
            and (cores.crowded or not row.if_crowded)
        ):
            default, classes = row.algorithm, range(first, _end(row.max_bytes))
            if own in classes:
                break
            first = max(first, classes.stop)
    has_size = collective not in UNKNOWN_SIZE and not COLLECTIVES[collective].meets
    if tuning is not None and has_size:
        classes = range(own, own + 1)
    if tuning is None or not has_size or not num_bytes:
        return Choice(default, "by the table", classes)
    times, source = tuning.estimate(collective, 1 << own, nodes, root)
    by_time = sorted(filter(fits, times), key=lambda name: times[name])
    shown = [f"{name} {_us(times[name])}" for name in by_time]
    if not by_time:
        return Choice(default, f"by the table; {source}", classes)
    if by_time[0] == default:
        return Choice(default, f"by the table; {source}: {', '.join(shown[:2])}", classes)
    if source == "measured" and default not in times:  # the file is older than the algorithm
        return Choice(default, "by the table; not measured: run hccl-bench --tune again", classes)
    before_us, worth = times.get(default, math.inf), _WORTH_A_CHANGE[source]
    if before_us <= worth * times[by_time[0]]:
        near = f"{shown[0]} is less than {worth - 1:.0%} faster"
        return Choice(default, f"by the table; {source}: {_us(before_us)}, {near}", classes)
    why = f"{source}: {', '.join(shown[:2])}; {default} of the table {_us(before_us)}"
    return Choice(by_time[0], why, classes)


def _us(time_us: float) -> str:
    return f"{time_us:.3g} us" if time_us < 1000 else f"{time_us:.0f} us"


def min_message_bytes(nodes: Nodes) -> int:
    """Return the size up to which sending a message whole beats cutting it for more channels.

    On a wire every message costs both kernels about 5 us. In shared memory it costs a wait, and a
    context switch if ranks share cores. The two costs overlap in calls that use both.
    """
    overlaps = 1 < len(nodes) < count_ranks(nodes)
    return 32 << 10 if overlaps else 128 << 10


def names_a_file(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether `HCCL_ALGORITHM` names an algorithm in a user's file."""
    return ":" in environ.get(VARIABLE, "")


def items(text: str) -> list[tuple[str | None, str]]:
    """Parse `HCCL_ALGORITHM`: pairs of a collective (None: all) and `ring` or `ring@64K`."""
    parts = [part.rpartition("=") for part in text.split(",") if part.strip()]
    return [(owner.strip() if equals else None, name.strip()) for owner, equals, name in parts]


def overrides(text: str) -> dict[str, list[tuple[float, str]]]:
    """Return the algorithms of the table that `HCCL_ALGORITHM` names, by collective.

    Each is a pair of its limit in bytes, by default infinity, and its name; limits ascend.
    """
    chosen: defaultdict[str, dict[float, str]] = defaultdict(dict)
    for collective, item in items(text):
        if ":" in item:
            continue  # in a user's file, see `custom.py`
        name, max_bytes = _limited(item)
        owners = list(COLLECTIVES) if collective is None else [collective]
        having = [owner for owner in owners if (owner, name) in ALGORITHMS]
        if not having:
            item = name if collective is None else f"{collective}={name}"
            valid = "; ".join(f"{owner}: {', '.join(names_for(owner))}" for owner in COLLECTIVES)
            raise InvalidArgumentError(f"{VARIABLE}: there is no {item!r}; there are {valid}")
        for owner in having:
            chosen[owner][max_bytes] = name
    return {owner: sorted(names.items()) for owner, names in chosen.items()}


def _limited(item: str) -> tuple[str, float]:
    """Parse `leader@64K`: an algorithm and the largest call in bytes that it serves."""
    name, limited, size = item.partition("@")
    if not limited:
        return name, math.inf
    try:
        return name.strip(), read_size(size)
    except ValueError as error:
        raise InvalidArgumentError(f"{VARIABLE}: {item!r}: after the @: {error}") from None
