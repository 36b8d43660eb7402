"""Simulates the measured cases, and makes the tables of both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.harness import Page
from benchmarks.prediction.measure import COLLECTIVE, TimedCase
from hccl_py.bench.collective.output.text import size_text
from hccl_py.lab.simulation.costs import US_PER_MIB_AT_1_GBIT, Costs
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology

# The bytes that Linux's token bucket counts for 1448 bytes of payload, and the burst that
# `namespaces.py` allows: 10 ms of the rate.
_COUNTED_PER_PAYLOAD = 1514 / 1448
_BURST_S = 0.01
_BOUND_BY_NETWORK = 0.5  # the part of a call's time that the limited wire adds
_NUM_CALLS = 4  # back to back, as in the measurement


class Compared(NamedTuple):
    """A case with its prediction."""

    case: TimedCase
    predicted_us: float
    is_bound_by_network: bool

    @property
    def error(self) -> float:
        """Predicted / fastest measured round - 1, because other load only adds time."""
        return self.predicted_us / min(self.case.rounds_us) - 1


def compare(cases: Iterable[TimedCase], costs: Costs, cores: int) -> Iterator[Compared]:
    """Simulate every case, on nodes that share a machine, with links of the case's rate."""
    for case in cases:
        topology = replace(Topology.even(case.nnodes, case.nproc), machines=(0,) * case.nnodes)
        of_case = _with_link(replace(costs, cores_per_machine=cores), case.rate_mbit)
        us = _time_us(case, topology, of_case)
        wire_us = of_case.scale_out.wire_us_per_mib
        unlimited = _with_link(of_case, None)
        free_us = _time_us(case, topology, unlimited) if wire_us else us
        yield Compared(case, us, bool(wire_us) and free_us < (1 - _BOUND_BY_NETWORK) * us)


def _with_link(costs: Costs, rate_mbit: float | None) -> Costs:
    if rate_mbit is None:
        return replace(costs, scale_out=replace(costs.scale_out, wire_us_per_mib=0.0))
    wire_us = US_PER_MIB_AT_1_GBIT * 1e3 / rate_mbit * _COUNTED_PER_PAYLOAD
    burst_bytes = rate_mbit * 1e6 / 8 * _BURST_S / _COUNTED_PER_PAYLOAD
    link = replace(costs.scale_out, wire_us_per_mib=wire_us, burst_bytes=burst_bytes)
    return replace(costs, scale_out=link)


def _time_us(case: TimedCase, topology: Topology, costs: Costs) -> float:
    name = f"{COLLECTIVE}={case.algorithm}"
    return simulate(name, topology, costs, case.bytes, num_calls=_NUM_CALLS).us


def report(compared: Sequence[Compared], page: Page) -> None:
    """Add a table for every layout and link, then counts and worst cases."""
    groups: dict[tuple[int, int, float], list[Compared]] = {}
    for one in compared:
        key = (one.case.nnodes, one.case.nproc, one.case.rate_mbit or 0)
        groups.setdefault(key, []).append(one)
    for (nnodes, nproc, rate), some in sorted(groups.items()):
        page.heading(f"{nnodes} × {nproc} ranks, {_rate_text(rate)}: measured → predicted in ms", 3)
        page.table(_table(some))
    page.heading("Cases within the limits")
    for kind, limit in ((True, 0.15), (False, 0.25)):
        group = [one for one in compared if one.is_bound_by_network is kind]
        if group:
            page.items([_summary(group, kind, limit)])


def _table(compared: Sequence[Compared]) -> list[list[str]]:
    sizes = sorted({one.case.bytes for one in compared})
    names = list(dict.fromkeys(one.case.algorithm for one in compared))
    by_key = {(one.case.algorithm, one.case.bytes): one for one in compared}
    rows = [[name, *(_case_text(by_key.get((name, size))) for size in sizes)] for name in names]
    return [["", *map(size_text, sizes)], *rows]


def _case_text(one: Compared | None) -> str:
    if one is None:
        return ""
    us = min(one.case.rounds_us)
    return f"{_ms_text(us)} → {_ms_text(one.predicted_us)} ({one.error:+.0%})"


def _ms_text(us: float) -> str:
    return f"{us / 1e3:.0f}" if us >= 1e5 else f"{us / 1e3:.3g}"


def _rate_text(rate_mbit: float) -> str:
    return f"{rate_mbit:g} Mbit/s" if rate_mbit else "no limit"


def _summary(group: Sequence[Compared], is_bound: bool, limit: float) -> str:
    near = sum(abs(one.error) <= limit for one in group)
    worst = max(group, key=lambda one: abs(one.error))
    case, what = worst.case, "bound by the network" if is_bound else "not bound by the network"
    return (
        f"{near} of {len(group)} cases {what} within {limit:.0%} ({near / len(group):.0%}); "
        f"the worst: {case.algorithm}, {size_text(case.bytes)}, "
        f"{case.nnodes} × {case.nproc} ranks, {_rate_text(case.rate_mbit or 0)}: {worst.error:+.0%}"
    )
