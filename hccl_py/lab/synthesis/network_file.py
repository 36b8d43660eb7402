"""Files that describe a network.

A topology file is JSON with `links`, each `{"between": [0, 1], "mbit": 50}` (both directions) or
`{"from": 0, "to": "rack", "mbit": 100}` (one); numbers are ranks, other names are switches.

A matrix is what `hccl-bench --validate --json` writes. It does not show whether a rank's links
share a network card, because each was measured alone. Unless the caller says that the links are
separate, a node is assumed to have one network card, as fast in each direction as the fastest link.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import networkx as nx

from hccl_py.algorithms.json_file import read_json
from hccl_py.lab.synthesis.network import Arc, Network
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

_MOST_RANKS = 1024
_KBIT_PER_GB_PER_S = 8e6
_LEAST_SHARE = 0.95
"""Rates that differ by less count as equal, as in `--validate`."""


def read_network(path: Path, *, separate_links: bool = False) -> Network:
    """Read a topology file or a matrix.

    Args:
        path: of the file.
        separate_links: whether the links of a matrix share no network card.

    Raises:
        InvalidArgumentError: the file cannot be read, is neither, or ranks are not connected.
    """
    document = read_json(path)
    try:
        links = document.get("links") if isinstance(document, dict) else None
        if not isinstance(links, list) or not links or not all(isinstance(x, dict) for x in links):
            raise ValueError(
                'expected "links": [...]: a topology, or what hccl-bench --validate --json wrote'
            )
        if "gb_per_s" in links[0]:
            network = _of_matrix(links, separate_links)
        else:
            network = _of_topology(links)
        _check_connected(network)
    except ValueError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    return network


def _of_topology(links: list[dict[str, Any]]) -> Network:
    given = [one for at, link in enumerate(links) for one in _ends(link, f"links[{at}]")]
    ranks = sorted({end for *ends, _ in given for end in ends if isinstance(end, int)})
    _check_ranks(ranks)
    switches = sorted({end for *ends, _ in given for end in ends if isinstance(end, str)})
    vertices: list[int | str] = [*ranks, *switches]
    number = {name: at for at, name in enumerate(vertices)}
    rates: dict[Arc, int] = {}
    for tail, head, rate in given:
        arc = number[tail], number[head]
        rates[arc] = rates.get(arc, 0) + rate  # parallel links
    return Network(len(ranks), tuple(map(str, number)), rates, tuple((rank,) for rank in ranks))


def _ends(link: dict[str, Any], where: str) -> Iterator[tuple[int | str, int | str, int]]:
    expected = (
        '{"between": [0, 1], "mbit": 50} or {"from": 0, "to": "switch", "mbit": 50}, ranks as '
        "numbers from 0 on, switches as names"
    )
    mbit, keys = link.get("mbit"), set(link)
    if keys == {"between", "mbit"}:
        ends = link["between"]
    else:
        ends = [link.get("from"), link.get("to")] if keys == {"from", "to", "mbit"} else None
    good = isinstance(ends, list) and len(ends) == 2 and ends[0] != ends[1]
    good = good and all(type(end) in (int, str) and end != "" for end in ends or ())
    good = good and type(mbit) in (int, float) and mbit is not None and 1e-3 <= mbit < 1e9
    if not good or ends is None or mbit is None:
        raise ValueError(f"{where}: expected {expected}; got {json.dumps(link)[:100]}")
    rate = round(mbit * 1000)
    yield ends[0], ends[1], rate
    if "between" in keys:
        yield ends[1], ends[0], rate


def _of_matrix(links: list[dict[str, Any]], separate: bool) -> Network:
    measured: dict[Arc, int] = {}
    crossing: set[Arc] = set()
    for at, link in enumerate(links):
        values: dict[str, Any] = {"from": None, "to": None, "gb_per_s": None} | link
        source, target, rate = values["from"], values["to"], values["gb_per_s"]
        good = type(source) is int and type(target) is int and source != target
        if not good or type(rate) not in (int, float) or not 0 < rate < 1e6:
            expected = '"from", "to" and "gb_per_s" (above 0, below 1e6) of a pair of ranks'
            raise ValueError(f"links[{at}]: expected {expected}; got {json.dumps(link)[:100]}")
        measured[source, target] = max(1, round(rate * _KBIT_PER_GB_PER_S))
        if link.get("between_nodes", True):
            crossing.add((source, target))
    n = 1 + max(map(max, measured))
    _check_ranks(sorted({rank for arc in measured for rank in arc}))
    missing = [pair for pair in permutations(range(n), 2) if pair not in measured]
    if missing:
        raise ValueError(
            f"expected every pair of {n} ranks; there is no link from, to {missing[0]}"
        )
    measured = _without_noise(measured)
    nodes = _nodes(n, set(measured) - crossing)
    names = [str(rank) for rank in range(n)]
    if separate or len(nodes) == 1:
        return Network(n, tuple(names), measured, nodes)
    rates = {arc: rate for arc, rate in measured.items() if arc not in crossing}
    between = {arc: measured[arc] for arc in crossing}
    wires = {rank: wire for node in nodes for rank, wire in _wires(node, between, names, rates)}
    for source, target in sorted(crossing):
        arc = wires[source][0], wires[target][1]
        rates[arc] = max(rates.get(arc, 0), measured[source, target])
    return Network(n, tuple(names), rates, nodes)


def _wires(
    node: tuple[int, ...], between: Mapping[Arc, int], names: list[str], rates: dict[Arc, int]
) -> list[tuple[int, Arc]]:
    """Add a link that all messages out of a node share, and one for those into it.

    Both are as fast as the fastest link of the node. Return for each rank the far end of the first
    and the near end of the second.
    """
    sends = max(rate for (source, _), rate in between.items() if source in node)
    takes = max(rate for (_, target), rate in between.items() if target in node)
    label = " ".join(map(str, node))
    out, into = len(names), len(names) + 1
    names += [f"wire from {label}", f"wire to {label}"]
    nic_out = nic_in = node[0]
    if len(node) > 1:
        nic_out, nic_in = len(names), len(names) + 1
        names += [f"nic of {label}", f"nic into {label}"]
        for rank in node:
            rates[rank, nic_out], rates[nic_in, rank] = sends, takes
    rates[nic_out, out], rates[into, nic_in] = sends, takes
    return [(rank, (out, into)) for rank in node]


def _without_noise(measured: Mapping[Arc, int]) -> dict[Arc, int]:
    """Give links whose rates differ by less than the noise the same rate, their median."""
    groups: list[list[Arc]] = []
    for arc in sorted(measured, key=lambda one: measured[one]):
        if groups and measured[groups[-1][-1]] >= _LEAST_SHARE * measured[arc]:
            groups[-1].append(arc)
        else:
            groups.append([arc])
    return {arc: measured[group[len(group) // 2]] for group in groups for arc in group}


def _nodes(n: int, inside: set[Arc]) -> Nodes:
    graph: nx.Graph[int] = nx.Graph(inside)
    graph.add_nodes_from(range(n))
    nodes = sorted(tuple(sorted(node)) for node in nx.connected_components(graph))
    for pair in (pair for node in nodes for pair in permutations(node, 2)):
        if pair not in inside:
            raise ValueError(
                f"expected between_nodes to agree on which ranks share a node; the link from, to "
                f"{pair} contradicts the others"
            )
    return tuple(nodes)


def _check_ranks(ranks: list[int]) -> None:
    if ranks != list(range(len(ranks))) or not 2 <= len(ranks) <= _MOST_RANKS:
        shown = f"{ranks}" if len(ranks) <= 8 else f"{len(ranks)} ranks, the last {ranks[-1]}"
        raise ValueError(f"expected links of 2 to {_MOST_RANKS} ranks 0, 1, ...; got {shown}")


def _check_connected(network: Network) -> None:
    """Check that every rank can reach every other, through ranks or switches."""
    graph: nx.DiGraph[int] = nx.DiGraph(network.routes.keys())
    graph.add_nodes_from(range(network.world_size))
    joined = next(each for each in nx.strongly_connected_components(graph) if 0 in each)
    if lost := set(range(network.world_size)) - joined:
        raise ValueError(f"expected a route between all ranks; rank {min(lost)} and 0 have none")
