"""Costs of well-known machines. What is published stands beside its source, the rest is assumed.

Gaudi: eight devices in a node, every pair joined by ports of its own; three ports of each device
lead out (24 ports of 100 Gbit/s on Gaudi 2, of 200 Gbit/s on Gaudi 3). Habana publishes that an
all_reduce of 256 MiB over eight Gaudi 3 reaches 512.96 of 525 GB/s, hence `_GAUDI_SHARE`. The
simulation says what the plans of hccl-py would take over these wires; Habana's library has others.
"""

from __future__ import annotations

from pathlib import Path

from hccl_py.lab.simulation.costs import Costs, LinkCosts, Wiring, costs_from, wire_us_per_mib
from hccl_py.transport.errors import InvalidArgumentError

_MIB = 1 << 20
_GAUDI_SHARE = 512.96 / 525


def _gaudi(port_gbit: float, memory_gb_per_s: float) -> Costs:
    wire_us = _MIB * 8e-3 / (3 * port_gbit * _GAUDI_SHARE)
    # A network card reads and writes memory by itself; latencies and descriptors are assumed.
    up = LinkCosts(2.0, 0.02, 0.0, wire_us, Wiring.PAIR)
    out = LinkCosts(5.0, 0.02, 0.0, wire_us, Wiring.RANK)
    # A reduction reads two operands and writes one.
    return Costs(up, out, reduce_us_per_mib=3 * _MIB / (memory_gb_per_s * 1e3))


def _cpu(gbit: float, latency_us: float, message_us: float) -> Costs:
    """A core for each rank; shared memory and kernel as a current server has them (assumed)."""
    up = LinkCosts(0.5, 0.2, 60.0)
    out = LinkCosts(latency_us, message_us, 120.0, wire_us_per_mib(gbit))
    return Costs(up, out, reduce_us_per_mib=60.0)


PRESETS = {
    "gaudi2": _gaudi(100, memory_gb_per_s=2450),
    "gaudi3": _gaudi(200, memory_gb_per_s=3700),
    "cloud25": _cpu(25, latency_us=25, message_us=5),
    "office1": _cpu(1, latency_us=60, message_us=8),
}
"""By the value of --preset: Gaudi 2 and 3, CPUs joined by 25 Gbit/s of a cloud, by 1 Gbit/s."""

RANKS_PER_NODE = {"gaudi2": 8, "gaudi3": 8, "cloud25": 4, "office1": 1}


def costs_of(what: Costs | str | Path) -> Costs:
    """Return costs as they are, by the name of a preset, or from a file that `costs_from` reads.

    Raises:
        InvalidArgumentError: there is no such preset or file, or the file holds no costs.
    """
    if isinstance(what, Costs):
        return what
    if what in PRESETS:
        return PRESETS[str(what)]
    if not Path(what).is_file():
        names = ", ".join(PRESETS)
        raise InvalidArgumentError(f"costs: expected {names} or a file, got {str(what)!r}")
    return costs_from(Path(what))
