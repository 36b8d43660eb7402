"""Every fault of the network made between namespaces, and found on the node that has it."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import namespaces
import pytest
from made_nodes import run
from namespaces import Hosts, call_inside, firewall
from quiet_clock import HANG_S

from hccl_py.launcher.preflight.check import Ask, CheckReport, Job

pytestmark = pytest.mark.nightly("launchers")
MASTER_PORT = 29511
RESPONDER = Path(__file__).with_name("responder_process.py")
Fault = Callable[[Hosts], None]
SYN = "tcp flags & (syn | ack) == syn"


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    if reason := namespaces.why_not():
        pytest.skip(reason)


def command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


@contextmanager
def host_file(hosts: Hosts, host: int, text: str) -> Iterator[None]:
    """Give a host an /etc/hosts of its own, as `ip netns exec` mounts it."""
    folder = Path("/etc/netns", hosts.names[host])
    folder.mkdir(parents=True)
    try:
        (folder / "hosts").write_text(text)
        yield
    finally:
        shutil.rmtree(folder)


class Node:
    """A responder on a host."""

    def __init__(
        self, hosts: Hosts, host: int, interfaces: str, offset_s: float, limits: str
    ) -> None:
        environ = {"HCCL_SECRET": "a secret of tests", "HCCL_SOCKET_IFNAME": interfaces}
        words = [sys.executable, str(RESPONDER), json.dumps(environ), str(offset_s)]
        shell = ["bash", "-c", f'{limits} exec "$@"', "bash", *words]
        self.process = subprocess.Popen(
            hosts.command(host, *shell), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self, question: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate(timeout=HANG_S)  # closes stdin, which ends it
        assert self.process.returncode == 0


def preflight(
    hosts: Hosts,
    *,
    names: Sequence[str] = (),
    interfaces: str = "",
    offset_s: float = 0.0,
    limits: str = "",
    full: bool = False,
) -> CheckReport:
    """Check all hosts; the last one has a wrong clock and limits, if any."""
    last = len(hosts.names) - 1
    names = names or [hosts.address(host) for host in range(len(hosts.names))]
    with ExitStack() as opened:
        nodes = []
        for host in range(len(hosts.names)):
            more = (offset_s, limits) if host == last else (0.0, "")
            nodes.append(Node(hosts, host, interfaces, *more))
            opened.callback(nodes[-1].close)

        def exchange(ask: Ask) -> dict[int, Any]:
            with ThreadPoolExecutor() as threads:
                asked = {n: threads.submit(nodes[n].answer, q) for n, q in ask.questions.items()}
                return {node: one.result(ask.timeout_s) for node, one in asked.items()}

        names, sizes = tuple(names), (1,) * len(nodes)
        return run(Job(names, sizes, names, hosts.address(0), MASTER_PORT, full), exchange)


def errors(report: CheckReport) -> list[tuple[int, str, str]]:
    found = [each for each in report.findings if each.severity == "error"]
    return [(each.node, each.what, each.remedy) for each in found]


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_healthy_hosts_are_all_good(ipv6: bool) -> None:
    with Hosts(ipv6=ipv6) as hosts:
        report = preflight(hosts, full=True)
    assert errors(report) == []
    assert f"link0 {ip_address(hosts.address(1))} " in report.details


def rule(text: str, host: int = 1) -> Fault:
    return lambda hosts: firewall(hosts, host, text)


def link(state: str) -> Fault:
    return lambda hosts: command("ip", "-n", str(hosts._switch), "link", "set", "link0-1", state)


drop, reset = rule(f"{SYN} drop"), rule(f"{SYN} reject with tcp reset")
prohibit = rule(f"{SYN} reject with icmpx type admin-prohibited")
unreachable = rule(f"{SYN} reject with icmpx type host-unreachable")
block_master = rule(f"tcp dport {MASTER_PORT} {SYN} drop", host=0)
unplug_beyond_the_bridge, unplug = link("nomaster"), link("down")


@pytest.mark.parametrize(
    ("num_hosts", "fault", "node", "what", "remedy"),
    [
        (2, drop, 1, "does not answer node 0 .* at its data port .*link0.* DROP", "iptables -I"),
        (2, reset, 1, "rejects node 0 .* REJECT rule .Connection refused", "iptables -I INPUT"),
        (2, prohibit, 1, "rejects node 0 .* REJECT rule", "-s 10.77.0.1 --dport 1024:65535"),
        (2, unreachable, 1, "rejects node 0 .* REJECT rule", "-j ACCEPT"),
        (2, block_master, 0, "does not answer node 1 .* at its master port", "dport 29511"),
        (3, unplug_beyond_the_bridge, 1, "is not on the link of nodes 0, 2", "ip link show link0"),
        (3, unplug, 1, "uses the interface link0 .*, which has no carrier", "ip link show link0"),
    ],
)
def test_fault_of_the_network_is_found_on_its_node(
    num_hosts: int, fault: Fault, node: int, what: str, remedy: str
) -> None:
    with Hosts(num_hosts=num_hosts) as hosts:
        fault(hosts)
        found = errors(preflight(hosts))
    ((its_node, its_what, its_remedy),) = found
    assert its_node == node
    assert re.search(what, its_what)
    assert remedy in its_remedy


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_black_hole_for_large_packets_is_found_and_its_remedy_works(ipv6: bool) -> None:
    with Hosts(ipv6=ipv6) as hosts:
        for name in hosts.names:  # else the kernel hands over packets before it cuts them
            command("ip", "-n", name, *["link", "set", "link0", "gso_max_segs", "1"])
        firewall(hosts, 1, "meta length > 1300 drop")
        ((node, what, remedy),) = errors(preflight(hosts))
        assert node == 0
        assert what == f"loses packets of full size to node 1 ({hosts.address(1)})"
        assert remedy.startswith("ip link set dev link0 mtu 1280")
        for name in hosts.names:
            command("ip", "-n", name, *["link", "set", "dev", "link0", "mtu", "1280"])
        assert errors(preflight(hosts)) == []


def test_path_that_is_blocked_beside_one_that_is_not_is_found() -> None:
    with Hosts(num_links=2) as hosts:
        firewall(hosts, 1, f'iifname "link1" {SYN} drop')
        ((node, what, remedy),) = errors(preflight(hosts, interfaces="link"))
    assert node == 1
    assert re.search(r"at its data port \(10.77.1.2, port \d+, link1\)", what)
    assert "-s 10.77.1.1 " in remedy


def test_few_descriptors_and_a_wrong_clock_are_found() -> None:
    with Hosts() as hosts:
        report = preflight(hosts, offset_s=-20.0, limits="ulimit -n 40;")
    (found,) = errors(report)
    assert found[0] == 1
    assert found[1].startswith("lets a process open 40 files")
    (clock,) = [each.what for each in report.findings if "clock" in each.what]
    skew_s = re.search(r"has a clock ([\d.]+) s behind", clock)
    assert skew_s is not None
    assert 19.5 < float(skew_s[1]) < 20.5


def test_names_that_do_not_resolve_or_mean_loopback_are_found() -> None:
    with Hosts() as hosts, ExitStack() as opened:
        # Node 1 knows both names, its own as Debian does; node 0 has the same line for node 1.
        one, two = f"{hosts.address(0)} one\n", "127.0.1.1 two\n"
        opened.enter_context(host_file(hosts, 0, one + two))
        opened.enter_context(host_file(hosts, 1, two))
        report = preflight(hosts, names=("one", "two"), full=True)
    (there, unknown) = sorted(errors(report))
    assert there[:2] == (0, "resolves two to 127.0.1.1, which is itself and not node 1 (two)")
    assert unknown[1].startswith("cannot resolve one: ")
    assert unknown[2].startswith(f"echo '{hosts.address(0)} one' >> /etc/hosts")


def test_master_port_that_another_program_has_is_found() -> None:
    with Hosts() as hosts:
        taken = call_inside(hosts.names[0], lambda: socket.create_server(("", MASTER_PORT)))
        with taken:
            (found,) = errors(preflight(hosts))
    assert found[:2] == (0, f"cannot listen on the master port: {os.strerror(98)}")
