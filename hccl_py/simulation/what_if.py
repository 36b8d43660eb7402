"""`--what-if straggler=17:2ms,link=3-4:10Gbit,network=25Gbit`: a topology and costs, changed."""

from __future__ import annotations

import re
from dataclasses import replace

from hccl_py.simulation.costs import Costs, wire_us_per_mib
from hccl_py.simulation.topology import Topology
from hccl_py.transport.errors import InvalidArgumentError

_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
_GBIT = {"kbit": 1e-6, "mbit": 1e-3, "gbit": 1.0, "tbit": 1e3}
_EXPECTED = (
    "expected straggler=RANK:TIME (17:2ms), link=NODE-NODE:RATE (3-4:10Gbit) or network=RATE"
)


def changed(text: str, topology: Topology, costs: Costs) -> tuple[Topology, Costs]:
    """Return topology and costs as `text` changes them; the empty text changes nothing.

    Raises:
        InvalidArgumentError: a part of it is none of what is expected, or names no rank or node.
    """
    late_us, links_gbit = dict(topology.late_us), dict(topology.links_gbit)
    for part in filter(None, text.split(",")):
        name, _, value = part.strip().partition("=")
        if name == "straggler" and (found := re.fullmatch(r"(\d+):(.+)", value)):
            late_us[int(found[1])] = _number(part, found[2], _US)
        elif name == "link" and (found := re.fullmatch(r"(\d+)-(\d+):(.+)", value)):
            here, there = sorted((int(found[1]), int(found[2])))
            links_gbit[here, there] = _number(part, found[3], _GBIT)
        elif name == "network":
            wire_us = wire_us_per_mib(_number(part, value, _GBIT))
            costs = replace(costs, scale_out=replace(costs.scale_out, wire_us_per_mib=wire_us))
        else:
            raise InvalidArgumentError(f"what-if {part!r}: {_EXPECTED}")
    return replace(topology, late_us=late_us, links_gbit=links_gbit), costs


def _number(part: str, text: str, units: dict[str, float]) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text.strip().lower())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise InvalidArgumentError(
            f"what-if {part!r}: expected a positive number of {', '.join(units)}; {_EXPECTED}"
        )
    return float(found[1]) * units[found[2]]
