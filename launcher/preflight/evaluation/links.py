"""Findings from nodes that dialled each other: one per node and fault."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hccl_py.launcher.preflight.finding import Finding, Nodes, name_nodes
from hccl_py.launcher.preflight.node.probe import CONNECT_S, Outcome, PairResult

_MOST_SOURCES = 8
_SAFE_MTU = 1280  # every IPv6 network carries it


class _Fault(NamedTuple):
    target: int
    path: int | None
    outcome: Outcome


def link_findings(nodes: Nodes, results: Mapping[int, Sequence[PairResult]]) -> Iterator[Finding]:
    """Evaluate the results of every dialling node."""
    seen: dict[_Fault, dict[int, PairResult]] = {}
    holes: dict[tuple[int, str], list[int]] = {}
    for source, ones in results.items():
        for one in ones:
            target, path = one["target"]["node"], one["target"]["path"]
            if one["outcome"] == "stalled":
                hole = source, _interface(nodes, source, path)
                holes.setdefault(hole, []).append(target)
            elif one["outcome"] != "good":
                seen.setdefault(_Fault(target, path, one["outcome"]), {})[source] = one
    for fault, by_source in seen.items():
        if fault.outcome != "dead" or not _is_other_end(nodes, fault, seen):
            yield _unreachable(nodes, fault, by_source)
    for (source, name), targets in holes.items():
        what = f"loses packets of full size to {name_nodes(targets, nodes.names)}"
        device = name or "DEV"
        mtu = f"ip link set dev {device} mtu {_SAFE_MTU}, there too"
        remedy = f"{mtu}; or ethtool -K {device} tso off"
        yield Finding(source, "error", what, remedy)


def _is_other_end(
    nodes: Nodes, fault: _Fault, seen: Mapping[_Fault, Mapping[int, PairResult]]
) -> bool:
    """Return whether a host only seems dead because the dialling host is, which has a finding."""
    path = fault.path or 0

    def is_dead(node: int) -> bool:
        its_own = seen.get(fault._replace(target=node, path=path), {})
        return len(its_own) > len(seen[fault]) or not _has_carrier(nodes, node, path)

    if fault.path is None and fault._replace(path=0) in seen:
        return True  # the data port has the finding
    return not _has_carrier(nodes, fault.target, path) or all(map(is_dead, seen[fault]))


def _has_carrier(nodes: Nodes, node: int, path: int | None) -> bool:
    interface = nodes.facts[node]["interfaces"].get(_interface(nodes, node, path))
    return interface is None or interface["has_carrier"]


def _unreachable(nodes: Nodes, fault: _Fault, by_source: Mapping[int, PairResult]) -> Finding:
    target = fault.target
    one = next(iter(by_source.values()))
    host, port = one["target"]["host"], one["target"]["port"]
    name = _interface(nodes, target, fault.path)
    sources = name_nodes(by_source, nodes.names)
    what_port = "its master port" if fault.path is None else "its data port"
    at = f"({host}, port {port}{f', {name}' if name else ''})"
    if fault.outcome == "dropped":
        what = f"does not answer {sources} at {what_port} {at} within {CONNECT_S:g} s: a DROP rule"
        return Finding(target, "error", what, _open_port(nodes, fault, by_source, port))
    if fault.outcome == "rejected":
        what = f"rejects {sources} at {what_port} {at}: a REJECT rule ({one['detail']})"
        return Finding(target, "error", what, _open_port(nodes, fault, by_source, port))
    if fault.outcome == "dead":
        what = f"is not on the link of {sources}: no host there has {host}"
        links = f"ip link show {name}" if name else "ip link"
        remedy = f"{links}: cable, switch, bridge or VLAN; or HCCL_SOCKET_IFNAME=^{name or 'NAME'}"
        return Finding(target, "error", what, remedy)
    if fault.outcome == "no route":
        source = min(by_source)
        what = f"has no route to {host} of {nodes.name(target)}"
        remedy = f"ip route add {host} via GATEWAY; or HCCL_SOCKET_IFNAME with a common network"
        return Finding(source, "error", what, remedy)
    if fault.outcome == "wrong peer":
        what = f"is not who answers {sources} at {host}, port {port}: {one['detail']}"
        return Finding(target, "error", what, f"arping -D {host}: another host has this address?")
    what = f"breaks connections of {sources} at {what_port} {at}: {one['detail']}"
    return Finding(target, "error", what, "dmesg | tail, and the firewall's log")


def _interface(nodes: Nodes, node: int, path: int | None) -> str:
    paths = nodes.facts[node]["paths"]
    return paths[path][0] if path is not None else ""


def _open_port(nodes: Nodes, fault: _Fault, by_source: Mapping[int, PairResult], port: int) -> str:
    addresses = {
        nodes.facts[source]["paths"][fault.path or 0][1]
        for source in by_source
        if nodes.facts[source]["paths"]
    }
    sources = f" -s {','.join(sorted(addresses))}" if len(addresses) <= _MOST_SOURCES else ""
    tool = "ip6tables" if any(":" in address for address in addresses) else "iptables"
    ports, hint = str(port), "; or another --master-port"
    if fault.path is not None:
        first, last = nodes.facts[fault.target]["port_range"] or (1024, 65535)
        ports, hint = f"{first}:{last}", "" if first != 1024 else "; HCCL_PORT_RANGE needs fewer"
    rule = f"{tool} -I INPUT -p tcp{sources} --dport {ports} -j ACCEPT"
    return f"{rule}, or a cloud's security group{hint}"
