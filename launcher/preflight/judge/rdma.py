"""The RDMA ports of all nodes -> findings, and the lines that list them."""

from collections.abc import Iterator

from hccl_py.launcher.preflight.finding import Finding
from hccl_py.launcher.preflight.judge.nodes import Nodes
from hccl_py.transport.providers.verbs.listing import WHOLE_PACKETS_MTU

_VARIABLE = "HCCL_TRANSPORT"


def check_rdma(nodes: Nodes) -> Iterator[Finding]:
    """Find nodes that cannot use RDMA where it is asked for, or where others can."""
    wants = any(facts["hccl_settings"].get(_VARIABLE) == "verbs" for facts in nodes.facts.values())
    some_can = any(facts["rdma"]["used"] for facts in nodes.facts.values())
    for node, facts in nodes.facts.items():
        rdma = facts["rdma"]
        if rdma["problem"]:
            what = f"has a setting that does not work: {rdma['problem']}"
            yield Finding(node, "error", what, "export another value, or unset it")
        elif rdma["unopened"]:
            cause, remedy = rdma["unopened"]
            what = f"cannot open {rdma['used']}: {cause}"
            yield Finding(node, "error" if wants else "info", what, remedy)
        elif rdma["used"]:
            yield from _check_used(nodes, node)
        elif wants:
            what = f"has no RDMA port to use, which {_VARIABLE}=verbs needs"
            yield Finding(node, "error", what, _remedy(rdma["lines"]))
        elif some_can:
            what = "has no RDMA port to use, other nodes have: auto stays with TCP"
            yield Finding(node, "info", what, _remedy(rdma["lines"]))


def rdma_lines(nodes: Nodes) -> str:
    """Render the ports of every node that has any; empty: none has."""
    found = []
    for node, facts in sorted(nodes.facts.items()):
        if facts["rdma"]["lines"]:
            found += [f"RDMA of {nodes.name(node)}:"]
            found += [f"  {line}" for line in facts["rdma"]["lines"]]
    return "\n".join(found)


def _check_used(nodes: Nodes, node: int) -> Iterator[Finding]:
    facts = nodes.facts[node]
    rdma = facts["rdma"]
    num_peers = sum(nodes.sizes) - nodes.sizes[node]
    needed, locked = num_peers * rdma["locked_bytes_per_peer"], rdma["locked_bytes"]
    if locked is not None and locked < needed:
        what = f"lets a rank lock {locked >> 20} MiB of memory; RDMA needs {needed >> 20} MiB"
        remedy = "ulimit -l unlimited; in a container: --ulimit memlock=-1"
        yield Finding(node, "warning", what, remedy)
    interface = facts["interfaces"].get(rdma["interface"])
    if interface is not None and interface["mtu"] < WHOLE_PACKETS_MTU:
        what = f"has an MTU of {interface['mtu']} on {rdma['interface']}: RDMA packets are small"
        remedy = f"ip link set {rdma['interface']} mtu {WHOLE_PACKETS_MTU}, and on the switches"
        yield Finding(node, "info", what, remedy)


def _remedy(lines: list[str]) -> str:
    """Say what is in the way of its ports; where it has none, how to have one."""
    ports = [line.partition("): ")[2] for line in lines if "): " in line and line[0] != " "]
    return "; ".join(ports) or (
        "modprobe the driver of the card; without a card: unset HCCL_TRANSPORT, or soft-RoCE: "
        "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE"
    )
