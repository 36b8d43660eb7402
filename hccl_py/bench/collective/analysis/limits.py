"""The limits that a result is compared with, measured in the same run by the ranks themselves.

Inside a node nothing moves faster than one thread's memcpy, between nodes nothing faster than plain
TCP sockets, in one direction or in both at once, as the collective's bytes go. `speeds.py` measures
both in rank processes; `Limits` asks for it.
"""

from __future__ import annotations

from hccl_py.bench.collective.cases import CASES
from hccl_py.bench.collective.options import Options
from hccl_py.bench.collective.ranks import Ranks

_BOTH_WAYS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
"""Where every node sends as much as it receives."""


class Limits:
    """What the machine can do beside what a collective reaches."""

    def __init__(self, ranks: Ranks, options: Options) -> None:
        """Measure the wire between the nodes, if there is one."""
        self._ranks, self._options = ranks, options
        self._wire = self._measure_wire() if options.nnodes > 1 else None

    def copy_gb_per_s(self, size: int) -> float:
        """Measure one thread's memcpy of `size` bytes on rank 0, the others being idle."""
        rates = self._ranks.ask("copy_gb_per_s", size, what="measuring memcpy")
        return float(rates[0])

    def share(self, algbw: float, busbw: float, copy_gb_per_s: float) -> float | None:
        """Return which part of the limit was reached; None: no limit says anything about it.

        Between nodes the bytes count that have to leave or reach a node in any algorithm.
        """
        options = self._options
        if not CASES[options.collective].has_data or options.world_size == 1:
            return None
        crossing = {options.node(a) != options.node(b) for a, b in options.pairs}
        if self._wire is None or crossing == {False}:
            return busbw / copy_gb_per_s
        if options.pairs:
            return algbw * len(options.pairs) / self._wire if crossing == {True} else None
        ranks = options.nproc if options.collective == "all_to_all" else 1
        factor = CASES[options.collective].busbw_factor(options.nnodes)
        return algbw * factor * ranks / self._wire

    @property
    def wire_gb_per_s(self) -> float | None:
        """Plain sockets between the first two nodes, in each direction used; None: one node."""
        return self._wire

    def _measure_wire(self) -> float:
        what, other = "measuring the wire", self._options.nproc
        where = self._ranks.ask("listen", 0, what=what)[0]
        both_ways = self._options.collective in _BOTH_WAYS
        rates = self._ranks.ask("wire_gb_per_s", 0, other, where, both_ways, what=what)
        return float(rates[0])
