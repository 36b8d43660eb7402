"""What is at each node: a line for each, and the lines of its RDMA ports."""

from collections.abc import Mapping
from math import inf

from hccl_py.launcher.preflight.judge.nodes import Nodes

_TITLES = (
    *("node", "name", "address", "MTU", "ranks", "CPUs", "memory", "files"),
    *("clock", "torch", "RDMA"),
)


def overview(nodes: Nodes, skews_s: Mapping[int, float]) -> str:
    """Render a table of the nodes that answered, then their RDMA ports.

    CPUs are those that the job may use.
    """
    rows = [_TITLES]
    for node, facts in sorted(nodes.facts.items()):
        paths = facts["paths"]
        interface = facts["interfaces"].get(paths[0][0]) if paths else None
        cpus = min(facts["cpus"], facts["quota"] or facts["cpus"])
        rows.append(
            (
                str(node),
                nodes.names[node] or facts["hostname"],
                ", ".join(f"{name} {host}".strip() for name, host in paths) or "-",
                str(interface["mtu"]) if interface else "-",
                str(nodes.sizes[node]),
                f"{cpus:g}",
                f"{min(facts['memory_available'], facts['memory_limit'] or inf) / 1e9:.1f} GB",
                str(facts["open_files"][0]),
                f"{skews_s[node]:+.2f} s" if node in skews_s else "-",
                facts["versions"]["torch"],
                facts["rdma"]["used"] or "-",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    ports = []
    for node, facts in sorted(nodes.facts.items()):
        if facts["rdma"]["lines"]:
            ports += [f"RDMA of {nodes.name(node)}:"]
            ports += [f"  {line}" for line in facts["rdma"]["lines"]]
    return "\n".join([*lines, *([""] if ports else []), *ports])
