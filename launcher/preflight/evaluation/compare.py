"""The facts of all nodes -> findings, and a table. Pure: nothing here reads from a machine."""

from collections.abc import Callable, Iterator, Mapping
from math import inf

from hccl_py.launcher.preflight.evaluation.addresses import (
    check_families,
    check_identities,
    check_interfaces,
    check_names,
    check_ports,
)
from hccl_py.launcher.preflight.evaluation.resources import (
    check_cores,
    check_descriptors,
    check_memory,
    check_rdma,
)
from hccl_py.launcher.preflight.finding import Finding, Nodes, unlike
from hccl_py.transport.network.agreed import may_differ

_MOST_SKEW_S = 10.0


def compare(nodes: Nodes) -> list[Finding]:
    """Make all checks."""
    return [finding for check in CHECKS for finding in check(nodes)]


def clock_findings(skews_s: Mapping[int, float]) -> Iterator[Finding]:
    """Find wrong clocks, given their offsets from the coordinator's."""
    for node, skew_s in skews_s.items():
        if abs(skew_s) > _MOST_SKEW_S:
            way = "ahead of" if skew_s > 0 else "behind"
            what = (
                f"has a clock {abs(skew_s):.1f} s {way} the one where the job was started: "
                "times in logs are wrong"
            )
            yield Finding(node, "warning", what, "timedatectl set-ntp true, or chronyc makestep")


def check_settings(nodes: Nodes) -> Iterator[Finding]:
    """Find HCCL_ settings that are invalid or differ."""
    for node, facts in nodes.facts.items():
        if facts["setting_problem"]:
            remedy = "export another value, or unset it"
            what = f"has a setting that does not work: {facts['setting_problem']}"
            yield Finding(node, "error", what, remedy)
    given = {node: facts["hccl_settings"] for node, facts in nodes.facts.items()}
    for name in sorted({name for settings in given.values() for name in settings}):
        if not may_differ(name):
            values = {node: settings.get(name, "unset") for node, settings in given.items()}
            remedy = f"export {name} with one value on all nodes, or -x {name}"
            yield from unlike(nodes, name, values, "warning", remedy)


def check_versions(nodes: Nodes) -> Iterator[Finding]:
    """Find differing versions of software that exchanges data between ranks."""
    where = "in the environment that the job uses"
    versions = {node: facts["versions"] for node, facts in nodes.facts.items()}
    ours = {node: each["hccl-py"] for node, each in versions.items()}
    remedy = f"install hccl-py USUAL {where}, from where the other nodes have it"
    yield from unlike(nodes, "hccl-py", ours, "error", remedy)
    torch = {node: each["torch"] for node, each in versions.items()}
    yield from unlike(nodes, "torch", torch, "warning", f"pip install torch==USUAL {where}")
    # Patch levels do not change the exchanged data.
    python = {node: each["Python"].rpartition(".")[0] for node, each in versions.items()}
    yield from unlike(nodes, "Python", python, "warning", "use Python USUAL")


CHECKS: tuple[Callable[[Nodes], Iterator[Finding]], ...] = (
    *(check_settings, check_versions, check_cores, check_descriptors, check_memory, check_rdma),
    *(check_names, check_identities, check_interfaces, check_families, check_ports),
)


_TITLES = (
    *("node", "name", "address", "MTU", "ranks", "CPUs", "memory", "files"),
    *("clock", "torch", "RDMA"),
)


def overview(nodes: Nodes, skews_s: Mapping[int, float]) -> str:
    """Render a table of the nodes that answered, then their RDMA ports.

    CPUs are the ones that the job may use.
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
