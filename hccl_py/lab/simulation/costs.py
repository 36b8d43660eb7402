"""The costs of a machine and its network for a rank: the numbers of a simulation.

The presets have published numbers, named here, and assumed ones. Gaudi: eight devices in a node,
every pair joined by ports of its own; three ports of each device lead out (24 ports of 100 Gbit/s
on Gaudi 2, of 200 Gbit/s on Gaudi 3). Habana publishes that an all_reduce of 256 MiB over eight
Gaudi 3 reaches 512.96 of 525 GB/s, hence `_GAUDI_SHARE`. The simulation predicts the plans of
hccl-py over these wires; Habana's library has other plans.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuning import read
from hccl_py.algorithms.json_file import read_json
from hccl_py.lab._lab import Wiring
from hccl_py.transport.arguments import measure, whole_number, wrong
from hccl_py.transport.errors import InvalidArgumentError

COSTS = "simulation_costs"
"""The key of the costs in a file of `hccl-plan calibrate`."""
_MIB = 1 << 20
_ETHERNET_FRAME_BYTES = 1538  # on the wire: preamble and gap included
_TCP_PAYLOAD_BYTES = 1448
US_PER_MIB_AT_1_GBIT = _MIB * 8e-3
_GAUDI_SHARE = 512.96 / 525
_LINKS = ("scale_up", "scale_out")
LINK_NUMBERS = ("latency_us", "message_us", "us_per_mib")
"""The numbers of each class of link in a file."""
_NUMBERS = (
    "reduce_us_per_mib",
    "result_us_per_mib",
    "cold_us_per_mib",
    "warm_share",
    "cache_bytes",
    "cores_per_machine",
)


@dataclass(frozen=True)
class LinkCosts:
    """The costs of messages on a class of link."""

    latency_us: float  # from the end of a send until the receiver can see the message
    message_us: float  # of a rank's thread, for each message sent and for each received
    us_per_mib: float  # of a rank's thread, for each MiB sent and for each received
    wire_us_per_mib: float = 0.0  # of the wire, in each direction; 0: no wire limits this class
    wiring: Wiring = Wiring.NODE  # one wire for each node, rank or pair of ranks
    burst_bytes: float = 0.0  # bytes that an idle wire takes at once (a token bucket)

    def __post_init__(self) -> None:
        _check(self, Wiring)


@dataclass(frozen=True)
class Costs:
    """Numbers of a machine and its network.

    Attributes:
        scale_up: messages inside a node.
        scale_out: messages between nodes.
        reduce_us_per_mib: for each MiB copied by a rank, and of each message that it reduces.
        cores_per_machine: None: a core for each rank.
        memory_us_per_mib: of the memory that all ranks of a machine share, for each MiB that a
            thread moves, in calls whose buffers do not fit `cache_bytes`.
        cold_us_per_mib: added for each MiB that a thread sends, receives, reduces or copies in such
            calls if ranks share cores: the caches are full of the other ranks' data.
        warm_share: factor of the costs per byte in calls that fit `cache_bytes` if ranks share
            cores: data that one rank wrote is in the cache for the next.
        result_us_per_mib: added for each MiB of a reduction's result: reducing seven messages at
            once takes less than seven times as long as reducing one.
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

    def __post_init__(self) -> None:
        _check(self, LinkCosts)
        if self.cores_per_machine is not None:
            whole_number("cores_per_machine", self.cores_per_machine, within=range(1, 1 << 31))


def _check(costs: LinkCosts | Costs, kind: type) -> None:
    """Raise InvalidArgumentError unless each field is a number or a `kind`, as declared."""
    for one in fields(costs):
        value = getattr(costs, one.name)
        if one.type is float:
            measure(one.name, value)
        elif one.type is kind and not isinstance(value, kind):
            raise wrong(one.name, f"a {kind.__name__}", value)


def wire_us_per_mib(gbit: float) -> float:
    """Return the time of a MiB of payload on Ethernet of this rate with frames of 1500 bytes."""
    return US_PER_MIB_AT_1_GBIT / gbit * _ETHERNET_FRAME_BYTES / _TCP_PAYLOAD_BYTES


def _gaudi(port_gbit: float, memory_gb_per_s: float) -> Costs:
    wire_us = US_PER_MIB_AT_1_GBIT / (3 * port_gbit * _GAUDI_SHARE)
    # No cost per byte: the network card reads and writes memory. The other costs are assumed.
    up = LinkCosts(2.0, 0.02, 0.0, wire_us, Wiring.PAIR)
    out = LinkCosts(5.0, 0.02, 0.0, wire_us, Wiring.RANK)
    # A reduction reads two operands and writes one.
    return Costs(up, out, reduce_us_per_mib=3 * _MIB / (memory_gb_per_s * 1e3))


def _cpu(gbit: float, latency_us: float, message_us: float) -> Costs:
    """Return assumed costs of a current server with a core for each rank."""
    up = LinkCosts(0.5, 0.2, 60.0)
    out = LinkCosts(latency_us, message_us, 120.0, wire_us_per_mib(gbit))
    return Costs(up, out, reduce_us_per_mib=60.0)


PRESETS = {
    "gaudi2": _gaudi(100, memory_gb_per_s=2450),
    "gaudi3": _gaudi(200, memory_gb_per_s=3700),
    "cloud25": _cpu(25, latency_us=25, message_us=5),
    "office1": _cpu(1, latency_us=60, message_us=8),
}
"""By the value of --preset: Gaudi 2 and 3, CPUs with 25 Gbit/s of a cloud or with 1 Gbit/s."""

RANKS_PER_NODE = {"gaudi2": 8, "gaudi3": 8, "cloud25": 4, "office1": 1}


def costs_of(what: Costs | str | Path) -> Costs:
    """Return costs, given as such, by the name of a preset, or by a file for `costs_from`.

    Raises:
        InvalidArgumentError: there is no such preset or file, or the file has no costs.
    """
    if isinstance(what, Costs):
        return what
    if not isinstance(what, str | Path):
        raise wrong("costs", "Costs, a preset or a file", what)
    if what in PRESETS:
        return PRESETS[str(what)]
    if not Path(what).is_file():
        names = ", ".join(PRESETS)
        raise InvalidArgumentError(f"costs: expected {names} or a file, got {str(what)!r}")
    return costs_from(Path(what))


def costs_from(path: Path) -> Costs:
    """Read costs that `hccl-plan calibrate` found, or the numbers of `hccl-bench --tune`.

    The numbers of a tuning are fitted to a simpler model. Those between nodes include the measured
    network. A class of link that the measured layout lacked gets the costs of the other class. A
    rank reduces at the speed measured inside a node if there was one, else between nodes.

    Raises:
        InvalidArgumentError: the file cannot be read, or has neither.
    """
    document = read_json(path)
    if isinstance(document, dict) and COSTS in document:
        return _parsed(path, document[COSTS])
    _, tuning = read(path)
    numbers = dict(zip(NUMBERS, tuning.numbers, strict=True))
    measured = [name for name in _LINKS if numbers[f"{name}_latency_us"] is not None]
    if not measured:
        raise InvalidArgumentError(f"{path}: expected numbers of a link: measure two ranks or more")

    def number(name: str, part: str) -> Any:
        return numbers[f"{name if name in measured else measured[0]}_{part}"] or 0.0

    up, out = (LinkCosts(*(number(name, part) for part in LINK_NUMBERS)) for name in _LINKS)
    cores = max(1, round(tuning.cores_per_node))
    return Costs(up, out, number("scale_up", "reduce_us_per_mib"), cores_per_machine=cores)


def written(costs: Costs) -> dict[str, Any]:
    """Return costs for JSON, without wires, which are part of the other numbers."""
    links = {
        name: {part: getattr(getattr(costs, name), part) for part in LINK_NUMBERS}
        for name in _LINKS
    }
    return links | {part: getattr(costs, part) for part in _NUMBERS}


def _parsed(path: Path, content: Any) -> Costs:
    try:
        up, out = (LinkCosts(*(content[name][part] for part in LINK_NUMBERS)) for name in _LINKS)
        numbers = {part: content[part] for part in _NUMBERS}
        cores = max(1, round(numbers.pop("cores_per_machine")))
        return Costs(up, out, cores_per_machine=cores, **numbers)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{path}: expected what hccl-plan calibrate wrote, got {type(error).__name__}: {error}"
        ) from error
