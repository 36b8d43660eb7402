"""All nodes beside each other: what most of them have, and which ones differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    """Find the nodes whose value is not the most frequent one; USUAL in the remedy is that one."""
    every = list(values.values())
    usual = max(every, key=every.count, default="")
    those = name_nodes([node for node in values if values[node] == usual], nodes.names)
    for node, value in values.items():
        if value != usual:
            text = f"has {what} {value}; {those}: {usual}"
            yield Finding(node, severity, text, remedy.replace("USUAL", usual))
