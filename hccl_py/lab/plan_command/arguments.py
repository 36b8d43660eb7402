"""Arguments that several commands take: an algorithm, its ranks and nodes, and costs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hccl_py.algorithms.custom import CustomAlgorithm
from hccl_py.algorithms.neighbours import count_ranks
from hccl_py.lab.algorithms import MOST_RANKS, algorithm_named, nodes_of
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    from hccl_py.lab.simulation.topology import Topology

NODES = "ranks of each node, such as 4,4, or 512x8 for 512 nodes of 8"


class PlannedWorld(NamedTuple):
    """Ranks on nodes, and the root of a rooted collective."""

    nodes: Nodes
    root: int | None

    def __str__(self) -> str:
        sizes = ",".join(str(len(node)) for node in self.nodes)
        return f"{count_ranks(self.nodes)} ranks, nodes {sizes}" + (
            "" if self.root is None else f", root {self.root}"
        )


def add_algorithm(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names an algorithm."""
    about = "all_reduce=ring of the table, mine.py:ring of your own, or plan:FILE, plans in a file"
    parser.add_argument("algorithm", help=about)


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options for the ranks of an algorithm."""
    about = f"{NODES} (one node of 8 ranks, or of those of a plan file)"
    parser.add_argument("--nodes", metavar="LIST", help=about)
    parser.add_argument("--root", type=int, help="root of a rooted collective (0)")


def add_costs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """Add the options for the costs of machines and network."""
    from hccl_py.lab.simulation.costs import PRESETS  # numpy takes longer to import than the rest

    costs = parser.add_mutually_exclusive_group(required=required)
    costs.add_argument("--preset", choices=PRESETS, help="costs of a well-known machine")
    about = "costs that hccl-plan calibrate or hccl-bench --tune wrote"
    costs.add_argument("--costs", type=Path, metavar="FILE", help=about)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the option for ranks and links of a network."""
    about = "the ranks and links of a topology, or of measured links, as synthesize reads them"
    parser.add_argument("--network", type=Path, metavar="FILE", help=about)


def network_of(given: argparse.Namespace) -> Topology | None:
    """Return the topology of --network, if it is given.

    Raises:
        InvalidArgumentError: the file is wrong, or --nodes is given too.
    """
    if getattr(given, "network", None) is None:
        return None
    if given.nodes:
        raise InvalidArgumentError("--nodes: the file of --network has the ranks; leave one out")
    from hccl_py.lab.simulation.topology import Topology  # numpy, as above

    return Topology.of_network(given.network)


def parsed_nodes(text: str) -> Nodes:
    """Read `4,4`, the number of ranks of each node, ranks in order, or `512x8` for 512 nodes of 8.

    Raises:
        InvalidArgumentError: the text is anything else.
    """
    number = r"0*([1-9]\d{0,4})"
    parts = [re.fullmatch(f"(?:{number}x)?{number}", part, re.ASCII) for part in text.split(",")]
    pairs = [(int(found[1] or 1), int(found[2])) for found in parts if found]
    if not all(parts) or sum(nodes * ranks for nodes, ranks in pairs) > MOST_RANKS:
        raise InvalidArgumentError(f"--nodes: expected {NODES}, up to {MOST_RANKS}; got {text!r}")
    return nodes_of(ranks for nodes, ranks in pairs for _ in range(nodes))


def chosen(given: argparse.Namespace) -> tuple[CustomAlgorithm, PlannedWorld]:
    """Return the algorithm and the ranks that the options name.

    Raises:
        InvalidArgumentError: there is no such algorithm or root, or the nodes are malformed.
    """
    algorithm = algorithm_named(given.algorithm)
    network = network_of(given)
    text = given.nodes or str(algorithm.world_size or 8)
    nodes = network.nodes if network else parsed_nodes(text)
    is_rooted, root = COLLECTIVES[algorithm.collective].rooted, given.root
    roots = range(count_ranks(nodes) if is_rooted else 0)
    if root is not None and root not in roots:
        valid = f"one of 0..{len(roots) - 1}" if roots else f"none, as {algorithm} has no root"
        raise InvalidArgumentError(f"--root: expected {valid}, got {root}")
    return algorithm, PlannedWorld(nodes, (root or 0) if is_rooted else None)
