"""Every fault that facts and pairs can show is found, on its node alone, and stands in the docs."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from made_nodes import GB, made_nodes, made_rdma, made_result

from hccl_py.launcher.preflight.evaluation.compare import clock_findings, compare
from hccl_py.launcher.preflight.evaluation.links import link_findings
from hccl_py.launcher.preflight.finding import Finding
from hccl_py.launcher.preflight.node.probe import PairResult

PAGE = Path(__file__).resolve().parents[3] / "docs" / "jobs" / "launcher.md"
ELSEWHERE = {"paths": [["eth0", "127.0.0.1"]]}
DOWN = {"eth0": {"mtu": 1500, "has_carrier": False}}
NAMES = {"a": ["10.0.0.1"], "c": ["10.0.0.3"]}
PORT_THAT_IS_DOWN = "mlx5_0 port 1 (Ethernet, 100 Gb/sec, DOWN): it is DOWN: ip link set eth0 up"
VERSIONS = {"Python": "3.11.7", "torch": "2.13.0", "hccl-py": "0.1.0"}


def pairs(*results: PairResult) -> Callable[[], Iterable[Finding]]:
    return lambda: link_findings(made_nodes(), {0: results, 2: results[:1]})


def of(**facts: Any) -> Callable[[], Iterable[Finding]]:
    return lambda: compare(made_nodes(**facts))


def with_rdma(
    settings: dict[str, str] | None = None, **changes: Any
) -> Callable[[], Iterable[Finding]]:
    """Give all nodes an RDMA port and these settings, and node 1 the changes."""
    usual = made_rdma(used="mlx5_0 port 1")

    def find() -> Iterable[Finding]:
        nodes = made_nodes()
        for node, facts in nodes.facts.items():
            facts["hccl_settings"] = settings or {}
            facts["rdma"] = made_rdma(**{**usual, **(changes if node == 1 else {})})
        return compare(nodes)

    return find


FAULTS: dict[str, Callable[[], Iterable[Finding]]] = {
    "a firewall drops packets": pairs(made_result(1, outcome="dropped")),
    "a firewall rejects": pairs(made_result(1, outcome="rejected", detail="Connection refused")),
    "the master port is blocked": pairs(made_result(1, path=None, outcome="dropped")),
    "an interface is up but dead": pairs(made_result(1, outcome="dead")),
    "no carrier": of(interfaces=DOWN),
    "no route": lambda: link_findings(made_nodes(), {1: [made_result(2, outcome="no route")]}),
    "large packets vanish": lambda: link_findings(
        made_nodes(), {1: [made_result(2, outcome="stalled")]}
    ),
    "another program or host answers": pairs(
        made_result(1, outcome="wrong peer", detail="another program listens there")
    ),
    "no network but loopback": of(**ELSEWHERE),
    "IPv4 here, IPv6 there": of(paths=[["eth0", "fd00::2"]]),
    "a name does not resolve": of(resolved={**NAMES, "c": "Name or service not known"}),
    "a name is another host's loopback": of(resolved={**NAMES, "c": ["127.0.1.1"]}),
    "one machine under two names": of(machine=["boot", "0"]),
    "too few descriptors": of(open_files=[40, 40]),
    "too few ports": of(port_range=[20000, 20003]),
    "a quota below the ranks": of(quota=2.5),
    "affinity below the ranks": of(cpus=2),
    "a memory limit below the ranks": of(memory_limit=GB),
    "little memory free": of(memory_available=GB),
    "another version of hccl-py": of(versions={**VERSIONS, "hccl-py": "0.0.9"}),
    "another version of torch": of(versions={**VERSIONS, "torch": "2.14.1"}),
    "another Python": of(versions={**VERSIONS, "Python": "3.10.2"}),
    "a setting that differs": of(hccl_settings={}),
    "a setting that makes no sense": of(setting_problem="HCCL_TLS: expected 0 or 1, got 'yes'"),
    "a clock that is wrong": lambda: clock_findings({0: 0.1, 1: -20.0, 2: 9.0}),
    "RDMA is asked for, and a node has none": with_rdma({"HCCL_TRANSPORT": "verbs"}, used=""),
    "RDMA is asked for, and a port is down": with_rdma(
        {"HCCL_TRANSPORT": "verbs"}, used="", lines=[PORT_THAT_IS_DOWN]
    ),
    "too little memory may be locked": with_rdma(locked_bytes=1 << 20),
    "RDMA is asked for, and libibverbs is missing": with_rdma(
        {"HCCL_TRANSPORT": "verbs"},
        unopened=["libibverbs.so.1: no such file", "apt install ibverbs-providers"],
    ),
    "a setting of RDMA makes no sense": with_rdma(problem="HCCL_IB_TC: expected a number"),
}


def test_nodes_without_a_fault_have_no_findings() -> None:
    assert compare(made_nodes()) == []
    assert list(link_findings(made_nodes(), {0: [made_result(1), made_result(2)]})) == []
    assert list(clock_findings({0: 0.0, 1: 9.9, 2: -9.9})) == []
    # As on Debian: ranks choose addresses by routes, not by names.
    assert compare(made_nodes(resolved={**NAMES, "b": ["127.0.1.1"]})) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_one_finding_on_the_node_that_has_it(fault: str) -> None:
    (found,) = FAULTS[fault]()
    assert found.node == 1


def test_docs_show_the_finding_and_the_remedy_of_every_fault() -> None:
    rows = []
    for fault, find in FAULTS.items():
        (found,) = find()
        cells = fault, f"{found.severity}: node 1 (b): {found.what}", found.remedy
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    table = "\n".join(rows)
    assert table in PAGE.read_text(), f"docs/jobs/launcher.md should have this table:\n{table}"


def test_descriptors_are_counted_by_ranks_and_paths() -> None:
    two_paths = [["eth0", "10.0.0.2"], ["eth1", "10.1.0.2"]]
    least = 64 + 2 * 3 + 8 * 2
    most = least + 3 * 8 * 2
    assert compare(made_nodes(open_files=[most, most], paths=two_paths)) == []
    (few,) = compare(made_nodes(open_files=[most - 1, 1 << 20], paths=two_paths))
    assert (few.severity, few.remedy) == ("warning", "ulimit -n 4096")
    assert f"opens {most} files for an all_to_all" in few.what
    (too_few,) = compare(made_nodes(open_files=[least - 1, 1 << 20], paths=two_paths))
    assert too_few.severity == "error"


def test_fault_that_many_nodes_see_is_one_finding() -> None:
    (found,) = link_findings(
        made_nodes(), {source: [made_result(1, outcome="dropped")] for source in (0, 2)}
    )
    assert "does not answer nodes 0, 2 (a, c) at its data port" in found.what
    assert "-s 10.0.0.1,10.0.0.3 " in found.remedy


def test_host_that_is_cut_off_is_named_and_not_those_that_it_misses() -> None:
    cut_off = {
        0: [made_result(1, outcome="dead"), made_result(2)],
        1: [made_result(node, path, outcome="dead") for node, path in ((0, 0), (0, None), (2, 0))],
        2: [made_result(0), made_result(1, outcome="dead")],
    }
    assert [each.node for each in link_findings(made_nodes(), cut_off)] == [1]
    # The interface says it already, in a finding of its own.
    assert list(link_findings(made_nodes(interfaces=DOWN), cut_off)) == []
