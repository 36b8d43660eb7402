"""The file of `hccl-launch --emulate`: nodes, links and faults.

`docs/jobs/emulate.md` describes it. Imports nothing of the data path: the launcher reads it too.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccl_py.quantities import RATE, SIZE, TIME, Kind, read_quantity
from hccl_py.transport.errors import InvalidArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_NODES = 256

_Bounded = tuple[Kind, tuple[str, str]]
"""A kind of quantity and its bounds, beyond which the wires' numbers would overflow."""

_BANDWIDTH: _Bounded = RATE, ("1 kbit/s", "1000 Gbit/s")
_LATENCY: _Bounded = TIME, ("0 s", "10 s")
_CUT: _Bounded = TIME, ("1 us", "86400 s")
_BURST: _Bounded = SIZE, ("1 B", "1024 MiB")
_DEFAULT_BURST = "16 KB"
_FAULT = "expected 'at step N: cut A-B for TIME' (nodes) or 'at step N: kill rank R'"
_EXAMPLE = 'nodes = 2 and [network] with bandwidth = "1 Gbit/s" and latency = "50 us"'


@dataclass(frozen=True)
class LinkCut:
    """A cut: no data between two nodes for a time, from the end of a step on."""

    step: int
    nodes: tuple[int, int]
    seconds: float

    def __str__(self) -> str:
        """Render it as the file does."""
        return f"at step {self.step}: cut {self.nodes[0]}-{self.nodes[1]} for {self.seconds:g} s"


@dataclass(frozen=True)
class RankKill:
    """A rank is killed at the end of one of its steps."""

    step: int
    rank: int

    def __str__(self) -> str:
        """Render it as the file does."""
        return f"at step {self.step}: kill rank {self.rank}"


NodePair = tuple[int, int]
"""Two nodes, lower first."""


@dataclass(frozen=True)
class Cluster:
    """The content of a file.

    Attributes:
        num_nodes: of the job.
        ranks_per_node: None: set by the launcher's option.
        bytes_per_s: of the network card of every node, in each direction.
        burst_bytes: bytes that an idle network card or link sends at once.
        latency_s: from the last bit that leaves until it arrives.
        links: bytes per second of the pairs with a link slower than their network cards.
        latencies_s: of the pairs with a latency of their own.
        faults: in the order of the file.
    """

    num_nodes: int
    ranks_per_node: int | None
    bytes_per_s: float
    burst_bytes: float
    latency_s: float
    links: Mapping[NodePair, float]
    latencies_s: Mapping[NodePair, float]
    faults: tuple[LinkCut | RankKill, ...]

    def check_ranks(self, world_size: int) -> None:
        """Raise InvalidArgumentError if a fault names a rank that the job does not have."""
        for fault in self.faults:
            if isinstance(fault, RankKill) and fault.rank >= world_size:
                raise InvalidArgumentError(
                    f"faults: kill rank {fault.rank}: expected a rank from 0 to {world_size - 1}"
                )


def read(path: Path) -> Cluster:
    """Read and check a file.

    Raises:
        InvalidArgumentError: the file cannot be read, or its content is wrong.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
        return _cluster(content)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path}: expected TOML, such as {_EXAMPLE}: {error}") from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None


def _cluster(content: dict[str, Any]) -> Cluster:
    _table("", content, {"nodes", "ranks_per_node", "faults", "network", "link"})
    for name in ("nodes", "network"):
        if name not in content:
            raise InvalidArgumentError(f"{name}: missing, expected as in {_EXAMPLE}")
    count = _count("nodes", content["nodes"], 2, _MOST_NODES)
    ranks = content.get("ranks_per_node")
    network = _table("network", content["network"], {"bandwidth", "latency", "burst"})
    if "bandwidth" not in network:
        raise InvalidArgumentError('network.bandwidth: missing, expected such as "1 Gbit/s"')
    links, latencies_s = _links(content.get("link", []), count)
    faults = content.get("faults", [])
    if not isinstance(faults, list):
        raise InvalidArgumentError(f"faults: expected a list of texts, got {faults!r}; {_FAULT}")
    return Cluster(
        num_nodes=count,
        ranks_per_node=None if ranks is None else _count("ranks_per_node", ranks, 1, 1 << 16),
        bytes_per_s=_quantity("network.bandwidth", network["bandwidth"], _BANDWIDTH) / 8,
        burst_bytes=_quantity("network.burst", network.get("burst", _DEFAULT_BURST), _BURST),
        latency_s=_quantity("network.latency", network.get("latency", "0 us"), _LATENCY),
        links=links,
        latencies_s=latencies_s,
        faults=tuple(_fault(text, count) for text in faults),
    )


def _links(content: Any, num_nodes: int) -> tuple[dict[NodePair, float], dict[NodePair, float]]:
    if not isinstance(content, list):
        raise InvalidArgumentError("link: expected [[link]], in double brackets")
    links: dict[NodePair, float] = {}
    latencies_s: dict[NodePair, float] = {}
    for number, entry in enumerate(content, 1):
        where = f"link {number}"
        link = _table(where, entry, {"nodes", "bandwidth", "latency"})
        nodes = link.get("nodes")
        if not isinstance(nodes, list) or len(nodes) != 2:
            raise InvalidArgumentError(f"{where}: expected nodes = [A, B], got {nodes!r}")
        pair = _pair(where, nodes, num_nodes)
        if pair in links or pair in latencies_s:
            raise InvalidArgumentError(
                f"{where}: expected one [[link]] for nodes {pair[0]} and {pair[1]}, got a second"
            )
        if not link.keys() & {"bandwidth", "latency"}:
            raise InvalidArgumentError(f"{where}: expected a bandwidth, a latency or both")
        if "bandwidth" in link:
            links[pair] = _quantity(f"{where}: bandwidth", link["bandwidth"], _BANDWIDTH) / 8
        if "latency" in link:
            latencies_s[pair] = _quantity(f"{where}: latency", link["latency"], _LATENCY)
    return links, latencies_s


def _fault(text: Any, num_nodes: int) -> LinkCut | RankKill:
    found = re.fullmatch(
        r"at step ([1-9]\d{0,8}): (?:cut (\d{1,9})-(\d{1,9}) for (.+)|kill rank (\d{1,9}))",
        text.strip() if isinstance(text, str) else "",
    )
    if found is None:
        raise InvalidArgumentError(f"faults: {_FAULT}, N from 1 on, got {text!r}")
    step, one, other, seconds, rank = found.groups()
    if rank is not None:
        return RankKill(int(step), int(rank))
    pair = _pair(f"faults: {text!r}", (int(one), int(other)), num_nodes)
    return LinkCut(int(step), pair, _quantity(f"faults: {text!r}", seconds, _CUT))


def _pair(where: str, nodes: Sequence[Any], num_nodes: int) -> NodePair:
    one, other = nodes
    for node in nodes:
        if type(node) is not int or not 0 <= node < num_nodes or one == other:
            raise InvalidArgumentError(
                f"{where}: expected two different nodes from 0 to {num_nodes - 1}, "
                f"got {one!r} and {other!r}"
            )
    return min(one, other), max(one, other)


def _table(where: str, content: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{where}: expected a table, got {content!r}")
    for name in content:
        if name not in known:
            name = f"{where}: {name}" if where else name
            raise InvalidArgumentError(f"{name}: expected one of {', '.join(sorted(known))}")
    return content


def _count(where: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgumentError(f"{where}: expected {least} to {most}, got {value!r}")
    return value


def _quantity(where: str, text: Any, bounded: _Bounded) -> float:
    """Return a quantity in seconds, bytes, or bits per second."""
    try:
        return read_quantity(text, *bounded)
    except ValueError as error:
        raise InvalidArgumentError(f"{where}: {error}") from None
