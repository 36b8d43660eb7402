"""Made-up nodes without a fault, for tests that give them one."""

from collections.abc import Callable
from typing import Any

from hccl_py.launcher.preflight.check import Answers, Ask, CheckReport, Job, check
from hccl_py.launcher.preflight.finding import Nodes
from hccl_py.launcher.preflight.node.facts import Facts, Interface, Rdma
from hccl_py.launcher.preflight.node.probe import PairResult, Target

GB = 1 << 30


def made_rdma(**changes: Any) -> Rdma:
    rdma = Rdma(
        lines=[],
        used="",
        problem="",
        unopened=[],
        locked_bytes=None,
        locked_bytes_per_peer=6_000_000,
    )
    rdma.update(changes)  # type: ignore[typeddict-item]
    return rdma


def made_facts(node: int, **changes: Any) -> Facts:
    facts = Facts(
        hostname="abc"[node],
        machine=["boot", str(node)],
        interfaces={"eth0": Interface(mtu=1500, has_carrier=True)},
        paths=[["eth0", f"10.0.0.{node + 1}"]],
        setting_problem="",
        port_range=[],
        connections_per_path=1,
        open_files=[1024, 4096],
        cpus=8,
        quota=None,
        memory_limit=None,
        memory_available=64 * GB,
        versions={"Python": "3.11.7", "torch": "2.13.0", "hccl-py": "0.1.0"},
        rdma=made_rdma(),
        hccl_settings={"HCCL_TLS": "1"},
        resolved={name: [f"10.0.0.{number + 1}"] for number, name in enumerate("abc")},
    )
    facts.update(changes)  # type: ignore[typeddict-item]
    return facts


def made_nodes(changed: int = 1, **changes: Any) -> Nodes:
    """Make three nodes of 4 ranks, one of which has these facts."""
    facts = {node: made_facts(node, **changes if node == changed else {}) for node in range(3)}
    return Nodes(("a", "b", "c"), (4, 4, 4), facts)


def made_result(node: int, path: int | None = 0, **changes: Any) -> PairResult:
    host = f"10.0.0.{node + 1}"
    target = Target(node=node, path=path, interface="", source="", host=host, port=40000)
    result = PairResult(target=target, outcome="good", detail="")
    result.update(changes)  # type: ignore[typeddict-item]
    return result


def run(job: Job, exchange: Callable[[Ask], Answers]) -> CheckReport:
    """Check with a function that carries questions and returns the answers that came in time."""
    checking = check(job)
    ask = next(checking)
    while True:
        try:
            ask = checking.send(exchange(ask))
        except StopIteration as ended:
            report: CheckReport = ended.value
            return report
