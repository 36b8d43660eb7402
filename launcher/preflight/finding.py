"""A finding: a fault of a node, and the remedy; comparison of nodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hccl_py.launcher.number_ranges import ranges
from hccl_py.launcher.preflight.node.facts import Facts

Severity = Literal["error", "warning"]
_MOST_NAMES = 8


@dataclass(frozen=True)
class Finding:
    """One fault of one node.

    Attributes:
        node: where the remedy is applied.
        severity: error: the job would fail; warning: it would be slow, or fail in some uses.
        what: the fault, as a clause whose subject is the node.
        remedy: a command, or what to change.
    """

    node: int
    severity: Severity
    what: str
    remedy: str


def render(findings: Iterable[Finding], names: Sequence[str], num_checks: int) -> str:
    """Render all findings, errors first, and one line that counts them.

    Args:
        findings: in any order; nodes with the same fault share a line.
        names: of all nodes, by number.
        num_checks: number of checks.
    """
    nodes_by_text: dict[tuple[Severity, str, str], list[int]] = {}
    for each in findings:
        nodes = nodes_by_text.setdefault((each.severity, each.what, each.remedy), [])
        nodes += [each.node] if each.node not in nodes else []
    rows = sorted(nodes_by_text.items(), key=lambda row: (row[0][0], min(row[1])))
    lines = []
    for (severity, what, remedy), nodes in rows:
        lines += [f"{severity:7}  {name_nodes(nodes, names)}: {what}", f"{'':7}  -> {remedy}"]
    counts = [(kind, sum(row[0][0] == kind for row in rows)) for kind in ("error", "warning")]
    found = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts if n)
    nodes_text = f"{len(names)} node{'s' * (len(names) != 1)}"
    return "\n".join([*lines, f"{num_checks} checks on {nodes_text}: {found or 'all good'}"])


def name_nodes(nodes: Iterable[int], names: Sequence[str]) -> str:
    """Render nodes with their names: "node 1 (b)", "nodes 1-3, 5 (b, c, d, f)"."""
    chosen = sorted(nodes)
    shown = [names[node] for node in chosen if names[node]]
    more = ["..."] if len(shown) > _MOST_NAMES else []
    listed = ", ".join([*shown[:_MOST_NAMES], *more])
    text = f"node{'s' * (len(chosen) > 1)} {ranges(chosen)}"
    return f"{text} ({listed})" if listed else text


@dataclass(frozen=True)
class Nodes:
    """The compared nodes.

    Attributes:
        names: the user's name of each node; "" if there is none. sizes: ranks on each node.
        facts: by node that answered.
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
    """Find nodes whose value is not the most frequent one, which replaces USUAL in the remedy."""
    every = list(values.values())
    usual = max(every, key=every.count, default="")
    those = name_nodes([node for node in values if values[node] == usual], nodes.names)
    for node, value in values.items():
        if value != usual:
            text = f"has {what} {value}; {those}: {usual}"
            yield Finding(node, severity, text, remedy.replace("USUAL", usual))
