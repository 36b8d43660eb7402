"""`--what-if straggler=17:2ms,link=3-4:10Gbit,network=25Gbit`: a topology and costs, changed."""

from __future__ import annotations

import re
from dataclasses import replace

from hccl_py.lab.simulation.costs import Costs, wire_us_per_mib
from hccl_py.lab.simulation.topology import Topology
from hccl_py.quantities import RATE, TIME, Kind, read_quantity
from hccl_py.transport.errors import InvalidArgumentError

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
            late_us[int(found[1])] = 1e6 * _quantity(part, found[2], TIME)
        elif name == "link" and (found := re.fullmatch(r"(\d+)-(\d+):(.+)", value)):
            here, there = sorted((int(found[1]), int(found[2])))
            links_gbit[here, there] = _quantity(part, found[3], RATE) / 1e9
        elif name == "network":
            wire_us = wire_us_per_mib(_quantity(part, value, RATE) / 1e9)
            costs = replace(costs, scale_out=replace(costs.scale_out, wire_us_per_mib=wire_us))
        else:
            raise InvalidArgumentError(f"what-if {part!r}: {_EXPECTED}")
    return replace(topology, late_us=late_us, links_gbit=links_gbit), costs


def _quantity(part: str, text: str, kind: Kind) -> float:
    try:
        return read_quantity(text, kind)
    except ValueError as error:
        raise InvalidArgumentError(f"what-if {part!r}: {error}; {_EXPECTED}") from None
