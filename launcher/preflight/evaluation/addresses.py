"""Findings about nodes on the network: names, interfaces, address families, ports."""

from collections.abc import Iterator
from itertools import groupby

from hccl_py.launcher.preflight.finding import Finding, Nodes, unlike
from hccl_py.transport.network.interfaces import address_family, is_loopback


def check_names(nodes: Nodes) -> Iterator[Finding]:
    """Find names that do not resolve, or that mean the wrong host."""
    for node, facts in nodes.facts.items():
        for name, resolved in facts["resolved"].items():
            owner = nodes.names.index(name) if name in nodes.names else 0
            paths = nodes.facts[owner]["paths"] if owner in nodes.facts else []
            address = paths[0][1] if paths else "ADDRESS"
            entry = f"'{address} {name}'"
            if isinstance(resolved, str):
                remedy = f"echo {entry} >> /etc/hosts, or use {address} in place of the name"
                yield Finding(node, "error", f"cannot resolve {name}: {resolved}", remedy)
            # On Debian a host's own name is 127.0.1.1; ranks choose addresses by routes.
            elif any(map(is_loopback, resolved)) and not _is_one_machine(nodes, node, owner):
                where = ", ".join(resolved)
                what = f"resolves {name} to {where}, which is itself and not {nodes.name(owner)}"
                remedy = f"put {entry} in place of the line with {name} in /etc/hosts"
                yield Finding(node, "error", what, remedy)


def check_identities(nodes: Nodes) -> Iterator[Finding]:
    """Find a machine that is two nodes."""

    def machine(node: int) -> list[str]:
        return nodes.facts[node]["machine"]

    for _, equal in groupby(sorted(nodes.facts, key=machine), machine):
        first, *others = equal
        for node in others:
            what = f"is the same machine as {nodes.name(first)}"
            yield Finding(node, "warning", what, "name it once, with more slots (host slots=N)")


def check_interfaces(nodes: Nodes) -> Iterator[Finding]:
    """Find interfaces that do not reach other hosts."""
    are_several = len({tuple(facts["machine"]) for facts in nodes.facts.values()}) > 1
    for node, facts in nodes.facts.items():
        for name, host in facts["paths"]:
            interface = facts["interfaces"].get(name)
            if interface is not None and not interface["has_carrier"]:
                what = f"uses the interface {name} ({host}), which has no carrier"
                remedy = (
                    f"ip link show {name}: cable, switch or bridge; or HCCL_SOCKET_IFNAME=^{name}"
                )
                yield Finding(node, "error", what, remedy)
            if is_loopback(host) and are_several:
                others = ",".join(name for name in facts["interfaces"] if name != "lo")
                what = f"would use {host}, which no other node reaches"
                remedy = f"ip route add default ..., or HCCL_SOCKET_IFNAME={others or 'eth0'}"
                yield Finding(node, "error", what, remedy)


def check_families(nodes: Nodes) -> Iterator[Finding]:
    """Find nodes whose ranks would listen on IPv6 while others dial IPv4, or the reverse."""
    families = {
        node: address_family(facts["paths"][0][1]).name
        for node, facts in nodes.facts.items()
        if facts["paths"]
    }
    remedy = "export HCCL_SOCKET_FAMILY=AF_INET (or AF_INET6) on all nodes"
    yield from unlike(nodes, "an address of", families, "error", remedy)


def check_ports(nodes: Nodes) -> Iterator[Finding]:
    """Find a port range that is too small."""
    for node, facts in nodes.facts.items():
        if not facts["port_range"]:
            continue
        first, last = facts["port_range"]
        # One listener for its first communicator and one for its control plane.
        needed = 2 * nodes.sizes[node]
        if last - first + 1 < needed:
            what = f"has {last - first + 1} ports in HCCL_PORT_RANGE={first}-{last} for {needed}"
            remedy = f"export HCCL_PORT_RANGE={first}-{first + 2 * needed}, and open it"
            yield Finding(node, "error", what, remedy)


def _is_one_machine(nodes: Nodes, a: int, b: int) -> bool:
    both = a in nodes.facts and b in nodes.facts
    return a == b or (both and nodes.facts[a]["machine"] == nodes.facts[b]["machine"])
