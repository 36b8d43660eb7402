"""What a machine and its network cost a rank: the numbers that a simulation runs on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hccl_py.algorithms.cost import NUMBERS
from hccl_py.algorithms.json_file import read_json
from hccl_py.algorithms.tuning import read
from hccl_py.transport.errors import InvalidArgumentError

COSTS = "simulation_costs"
"""The key under which `hccl-plan calibrate` writes."""
_MIB = 1 << 20
_ETHERNET_FRAME_BYTES = 1538  # on the wire: preamble and gap included
_TCP_PAYLOAD_BYTES = 1448
US_PER_MIB_AT_1_GBIT = _MIB * 8e-3
_LINK_PARTS = ("latency_us", "message_us", "us_per_mib")
_PARTS = (
    "reduce_us_per_mib",
    "result_us_per_mib",
    "cold_us_per_mib",
    "warm_share",
    "cache_bytes",
    "cores_per_machine",
)


class Wiring(Enum):
    """Whose a wire is. Messages on one wire and in one direction go one after the other."""

    NODE = "node"  # one network card for all ranks of a node
    RANK = "rank"  # one for each rank
    PAIR = "pair"  # one for each pair of ranks


@dataclass(frozen=True)
class LinkCosts:
    """What messages of a class of link cost."""

    latency_us: float  # from the end of a send until the receiver can see the message
    message_us: float  # of a rank's thread, for each message sent and for each received
    us_per_mib: float  # of a rank's thread, for each MiB sent and for each received
    wire_us_per_mib: float = 0.0  # of the wire, in each direction; 0: no wire limits this class
    wiring: Wiring = Wiring.NODE
    burst_bytes: float = 0.0  # what a wire that stood still takes at once (a token bucket)


@dataclass(frozen=True)
class Costs:
    """Numbers of a machine and its network.

    Attributes:
        scale_up: messages inside a node.
        scale_out: messages between nodes.
        reduce_us_per_mib: for each MiB copied by a rank, and of each message that it reduces.
        warm_share: which part of what bytes cost a thread is left where ranks take turns on cores
            and a call fits `cache_bytes`: what one of them wrote is in the cache of the next.
        result_us_per_mib: more, for each MiB of a reduction's result: to reduce seven messages at
            once takes less than seven times as long as to reduce one.
        cores_per_machine: None: a core for each rank.
        memory_us_per_mib: of the memory that all ranks of a machine share, for each MiB that a
            thread moves, in calls whose buffers do not fit `cache_bytes`.
        cold_us_per_mib: of a rank's thread, for each MiB sent, received, reduced or copied in such
            calls, where ranks take turns on cores: each finds the caches full of the others' data.
        cache_bytes: of a machine.
    """

    scale_up: LinkCosts
    scale_out: LinkCosts
    reduce_us_per_mib: float
    cores_per_machine: int | None = None
    memory_us_per_mib: float = 0.0
    cold_us_per_mib: float = 0.0
    warm_share: float = 1.0
    result_us_per_mib: float = 0.0
    cache_bytes: float = 0.0


def wire_us_per_mib(gbit: float) -> float:
    """Return what a MiB of payload takes on an Ethernet of this speed with frames of 1500 bytes."""
    return US_PER_MIB_AT_1_GBIT / gbit * _ETHERNET_FRAME_BYTES / _TCP_PAYLOAD_BYTES


def costs_from(path: Path) -> Costs:
    """Read costs that `hccl-plan calibrate` found, or the numbers of `hccl-bench --tune`.

    Those of a tuning are fitted to a simpler model. The network that was measured is part of the
    numbers between nodes. A class of link that the measured layout lacked costs what the other one
    does. A rank reduces at one speed here: that of messages inside a node, where there were any.

    Raises:
        InvalidArgumentError: the file cannot be read, or is neither.
    """
    document = read_json(path)
    if isinstance(document, dict) and COSTS in document:
        return _parsed(path, document[COSTS])
    _, tuning = read(path)
    numbers = dict(zip(NUMBERS, tuning.numbers, strict=True))
    cores = max(1, round(tuning.cores_per_node))
    links = [_link(numbers, name) for name in ("scale_up", "scale_out")]
    up, out = (link or other for link, other in zip(links, reversed(links), strict=True))
    if up is None or out is None:
        raise InvalidArgumentError(f"{path}: it has numbers for no link; measure two ranks or more")
    measured = "scale_out" if links[0] is None else "scale_up"
    reduce_us_per_mib = numbers[f"{measured}_reduce_us_per_mib"] or 0.0
    return Costs(up, out, reduce_us_per_mib, cores_per_machine=cores)


def written(costs: Costs) -> dict[str, Any]:
    """Return costs as JSON holds them; without wires, which are part of the other numbers."""
    links = {
        name: {part: getattr(link, part) for part in _LINK_PARTS}
        for name, link in (("scale_up", costs.scale_up), ("scale_out", costs.scale_out))
    }
    return links | {part: getattr(costs, part) for part in _PARTS}


def _parsed(path: Path, content: Any) -> Costs:
    try:
        up, out = (_parsed_link(content[name]) for name in ("scale_up", "scale_out"))
        parts = {part: _number(content[part]) for part in _PARTS}
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{path}: expected what hccl-plan calibrate wrote, got {type(error).__name__}: {error}"
        ) from error
    cores = max(1, round(parts.pop("cores_per_machine")))
    return Costs(up, out, cores_per_machine=cores, **parts)


def _parsed_link(content: Any) -> LinkCosts:
    latency_us, message_us, us_per_mib = (_number(content[part]) for part in _LINK_PARTS)
    return LinkCosts(latency_us, message_us, us_per_mib)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} where a number of 0 or more belongs")
    return float(value)


def _link(numbers: dict[str, float | None], name: str) -> LinkCosts | None:
    parts = [numbers[f"{name}_{part}"] for part in ("latency_us", "message_us", "us_per_mib")]
    latency_us, message_us, us_per_mib = (part or 0.0 for part in parts)
    return None if None in parts else LinkCosts(latency_us, message_us, us_per_mib)
