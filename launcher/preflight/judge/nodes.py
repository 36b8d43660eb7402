"""All nodes beside each other: what most of them have, and which ones differ."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hccl_py.launcher.preflight.finding import Finding, Severity, name_nodes
from hccl_py.launcher.preflight.node.facts import Facts


@dataclass(frozen=True)
class Nodes:
    """What is compared.

    Attributes:
        names: what the user calls each node; "" where there is no name.
        sizes: ranks on each node.
        facts: of each node that answered.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    facts: Mapping[int, Facts]

    def name(self, node: int) -> str:
        """Render a node for a text."""
        return name_nodes([node], self.names)


def unlike(
    nodes: Nodes, what: str, values: Mapping[int, str], severity: Severity, remedy: str
) -> Iterator[Finding]:
    """Find the nodes whose value is not that of most nodes."""
    usual = most_common(list(values.values()))
    those = name_nodes([node for node in values if values[node] == usual], nodes.names)
    for node, value in values.items():
        if value != usual:
            yield Finding(node, severity, f"has {what} {value}; {those}: {usual}", remedy)


def most_common(values: Sequence[str]) -> str:
    """Return the most frequent value, of several the one that comes first; "" of none."""
    return max(values, key=values.count, default="")


def equal(nodes: Nodes, of: Callable[[Facts], object]) -> list[list[int]]:
    """Return the groups of several nodes that share a value."""
    ordered = sorted(nodes.facts, key=lambda node: (str(of(nodes.facts[node])), node))
    groups = groupby(ordered, key=lambda node: of(nodes.facts[node]))
    return [these for _, group in groups if len(these := list(group)) > 1]
