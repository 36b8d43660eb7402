"""The file of `hccl-launch --emulate`: which nodes, how their links are, and what breaks when.

`docs/jobs/emulate.md` describes it. Imports nothing of the data path: the launcher reads it too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccl_py.transport.errors import InvalidArgumentError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_NODES = 256
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "kib": 1024.0, "mib": 1024.0**2}
_DEFAULT_BURST = "16 KB"
_KEYS = {"nodes", "ranks_per_node", "faults", "network", "link"}
_FAULT = "expected 'at step N: cut A-B for TIME' (nodes) or 'at step N: kill rank R'"
_EXAMPLE = 'nodes = 2 and [network] with bandwidth = "1 Gbit/s" and latency = "50 us"'


@dataclass(frozen=True)
class Speed:
    """Of a card or a link, in each direction."""

    bytes_per_s: float
    burst_bytes: float


@dataclass(frozen=True)
class Cut:
    """Nothing passes between two nodes for a time, from the end of a step on."""

    step: int
    nodes: tuple[int, int]
    seconds: float


@dataclass(frozen=True)
class Kill:
    """A rank is killed at the end of one of its steps."""

    step: int
    rank: int


Pair = tuple[int, int]
"""Two nodes, lower first."""


@dataclass(frozen=True)
class Cluster:
    """What a file says.

    Attributes:
        num_nodes: of the job.
        ranks_per_node: None: the launcher's option says it.
        card: of every node.
        latency_s: from the last bit that leaves until it is there.
        links: speeds of pairs that have a slower link between them.
        latencies_s: of pairs where it is another one.
        faults: in the order of the file.
    """

    num_nodes: int
    ranks_per_node: int | None
    card: Speed
    latency_s: float
    links: Mapping[Pair, Speed]
    latencies_s: Mapping[Pair, float]
    faults: tuple[Cut | Kill, ...]

    def check_ranks(self, world_size: int) -> None:
        """Raise InvalidArgumentError if a fault names a rank that the job does not have."""
        for fault in self.faults:
            if isinstance(fault, Kill) and fault.rank >= world_size:
                raise InvalidArgumentError(
                    f"faults: kill rank {fault.rank}: expected a rank from 0 to {world_size - 1}"
                )


def read(path: Path) -> Cluster:
    """Read and check a file.

    Raises:
        InvalidArgumentError: it cannot be read, or something in it is not what was expected.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{path}: expected TOML, such as {_EXAMPLE}: {error}") from error
    try:
        return _cluster(content)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None


def _cluster(content: dict[str, Any]) -> Cluster:
    _check_keys("", content, _KEYS)
    for name in ("nodes", "network"):
        if name not in content:
            raise InvalidArgumentError(f"{name}: expected it, as in {_EXAMPLE}")
    count = _count("nodes", content["nodes"], 2, _MOST_NODES)
    ranks = content.get("ranks_per_node")
    network = _table("network", content["network"], {"bandwidth", "latency", "burst"})
    if "bandwidth" not in network:
        raise InvalidArgumentError('network.bandwidth: expected it, such as "1 Gbit/s"')
    burst = _quantity("network.burst", network.get("burst", _DEFAULT_BURST), _BYTES)
    card = Speed(_rate("network.bandwidth", network["bandwidth"]), burst)
    latency_s = _quantity("network.latency", network.get("latency", "0 us"), _SECONDS, least=0.0)
    links, latencies_s = _links(content.get("link", []), count, burst)
    faults = content.get("faults", [])
    if not isinstance(faults, list):
        raise InvalidArgumentError(f"faults: expected a list of texts, got {faults!r}; {_FAULT}")
    return Cluster(
        num_nodes=count,
        ranks_per_node=None if ranks is None else _count("ranks_per_node", ranks, 1, 1 << 16),
        card=card,
        latency_s=latency_s,
        links=links,
        latencies_s=latencies_s,
        faults=tuple(_fault(text, count) for text in faults),
    )


def _links(
    content: Any, num_nodes: int, burst_bytes: float
) -> tuple[dict[Pair, Speed], dict[Pair, float]]:
    if not isinstance(content, list):
        raise InvalidArgumentError("link: expected [[link]], in double brackets")
    links: dict[Pair, Speed] = {}
    latencies_s: dict[Pair, float] = {}
    for number, entry in enumerate(content, 1):
        where = f"link {number}"
        link = _table(where, entry, {"nodes", "bandwidth", "latency"})
        nodes = link.get("nodes")
        if not isinstance(nodes, list) or len(nodes) != 2:
            raise InvalidArgumentError(f"{where}: expected nodes = [A, B], got {nodes!r}")
        pair = _pair(where, nodes[0], nodes[1], num_nodes)
        if pair in links or pair in latencies_s:
            raise InvalidArgumentError(
                f"{where}: nodes {pair[0]} and {pair[1]} have a link already"
            )
        if not link.keys() & {"bandwidth", "latency"}:
            raise InvalidArgumentError(f"{where}: expected a bandwidth, a latency or both")
        if "bandwidth" in link:
            links[pair] = Speed(_rate(f"{where}: bandwidth", link["bandwidth"]), burst_bytes)
        if "latency" in link:
            latency = _quantity(f"{where}: latency", link["latency"], _SECONDS, least=0.0)
            latencies_s[pair] = latency
    return links, latencies_s


def _fault(text: Any, num_nodes: int) -> Cut | Kill:
    if isinstance(text, str):
        if found := re.fullmatch(r"at step (\d+): cut (\d+)-(\d+) for (.+)", text.strip()):
            nodes = _pair(f"faults: {text!r}", int(found[2]), int(found[3]), num_nodes)
            seconds = _quantity(f"faults: {text!r}", found[4], _SECONDS)
            return Cut(_step(text, found[1]), nodes, seconds)
        if found := re.fullmatch(r"at step (\d+): kill rank (\d+)", text.strip()):
            return Kill(_step(text, found[1]), int(found[2]))
    raise InvalidArgumentError(f"faults: {_FAULT}, got {text!r}")


def _step(text: str, number: str) -> int:
    if int(number) < 1:
        raise InvalidArgumentError(f"faults: {text!r}: expected a step of 1 or more")
    return int(number)


def _pair(where: str, one: Any, other: Any, num_nodes: int) -> Pair:
    for node in (one, other):
        if type(node) is not int or not 0 <= node < num_nodes or one == other:
            raise InvalidArgumentError(
                f"{where}: expected two different nodes from 0 to {num_nodes - 1}, "
                f"got {one!r} and {other!r}"
            )
    return min(one, other), max(one, other)


def _check_keys(where: str, content: dict[str, Any], known: set[str]) -> None:
    for name in content:
        if name not in known:
            raise InvalidArgumentError(f"{where}{name}: expected one of {', '.join(sorted(known))}")


def _table(where: str, content: Any, known: set[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{where}: expected a table, got {content!r}")
    _check_keys(f"{where}: ", content, known)
    return content


def _count(where: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgumentError(f"{where}: expected {least} to {most}, got {value!r}")
    return value


def _rate(where: str, text: Any) -> float:
    """Return bytes per second."""
    return _quantity(where, text, _BITS, suffix="/s") / 8


def _quantity(
    where: str,
    text: Any,
    units: Mapping[str, float],
    *,
    suffix: str = "",
    least: float | None = None,
) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)(?:/s)?", str(text).strip())
    unit = found[2].lower() if found else ""
    value = float(found[1]) * units.get(unit, 0.0) if found else 0.0
    if unit not in units or (value <= 0 and (least is None or value < least)):
        names = ", ".join(f"{name}{suffix}" for name in units)
        raise InvalidArgumentError(f"{where}: expected a number and one of {names}, got {text!r}")
    return value
