"""Two hosts in namespaces; needs root, as the product does."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hccl_py.bench.main import main
from hccl_py.bench.namespaces import NamespaceError, TwoHosts, enter

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

_SEND = """
import socket, sys
from hccl_py.bench.namespaces import enter
enter(sys.argv[1])
with socket.create_connection((sys.argv[2], int(sys.argv[3])), timeout=10) as made:
    made.sendall(made.getsockname()[0].encode())
"""
_LISTEN = """
import socket
with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
    listener.settimeout(10)
    print(listener.getsockname()[1], flush=True)
    while True:
        made, _ = listener.accept()
        with made:
            made.settimeout(10)
            print(made.recv(100).decode(), flush=True)
"""


def _listed() -> list[str]:
    """The namespaces that this process made and did not remove."""
    listing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = f"hccl-{os.getpid()}-"
    return [line.split()[0] for line in listing.stdout.splitlines() if line.startswith(mine)]


@pytest.fixture(scope="module")
def hosts() -> Iterator[TwoHosts]:
    with TwoHosts(num_links=2) as made:
        yield made
    assert not set(made.names) & set(_listed())


@pytest.fixture
def listener(hosts: TwoHosts) -> Iterator["subprocess.Popen[str]"]:
    """A process on host 1; says its port, then the address of each client."""
    command = hosts.command(1, [sys.executable, "-c", _LISTEN])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate(timeout=10)


@needs_root
def test_hosts_reach_each_other_on_every_link_in_both_families(
    hosts: TwoHosts, listener: "subprocess.Popen[str]"
) -> None:
    assert listener.stdout is not None
    port = listener.stdout.readline().strip()
    for address in (hosts.address, hosts.address_v6):
        for link in range(hosts.num_links):
            command = [sys.executable, "-c", _SEND, hosts.names[0], address(1, link), port]
            subprocess.run(command, check=True, timeout=20)
            assert listener.stdout.readline().strip() == address(0, link)


@needs_root
def test_link_taken_down_has_no_carrier_and_comes_back_with_its_addresses(hosts: TwoHosts) -> None:
    def shown(host: int, link: int) -> str:
        command = ["ip", "-n", hosts.names[host], "addr", "show", hosts.interface(link)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before = [hosts.address(0, 1) in shown(0, 1), hosts.address_v6(0, 1) in shown(0, 1)]
    hosts.take_down(1)
    assert "state DOWN" in shown(0, 1) and "NO-CARRIER" in shown(1, 1)
    assert "state UP" in shown(0, 0) and "state UP" in shown(1, 0)
    hosts.bring_up(1)
    after = [hosts.address(0, 1) in shown(0, 1), hosts.address_v6(0, 1) in shown(0, 1)]
    assert before == after == [True, True]
    assert "NO-CARRIER" not in shown(1, 1)


@needs_root
def test_limited_link_has_a_shaper_on_both_hosts(hosts: TwoHosts) -> None:
    hosts.limit(1, 100)
    hosts.limit(1, 80)
    for host in range(2):
        command = hosts.command(host, ["tc", "qdisc", "show", "dev", hosts.interface(1)])
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "tbf" in shown and "rate 80Mbit" in shown


@needs_root
def test_enter_moves_no_thread_where_there_is_no_such_namespace() -> None:
    before = socket.if_nameindex()
    with pytest.raises(NamespaceError, match="no network namespace hccl-none"):
        enter("hccl-none")
    assert socket.if_nameindex() == before


@needs_root
def test_hosts_that_cannot_be_finished_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _listed()
    monkeypatch.setattr(TwoHosts, "address", lambda *_: "no address")
    with pytest.raises(NamespaceError, match="no address"):
        TwoHosts()
    assert _listed() == before


def test_hosts_without_root_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NamespaceError, match="need root"):
        TwoHosts()


@needs_root
@pytest.mark.parametrize("api", [["--compare", "gloo"], ["--api", "communicator"]])
def test_main_with_veth_finds_nothing_wrong(
    api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--iters", "2", "--warmup", "0", "--timeout", "60", "--sizes", "4,4099,1M"]
    before = _listed()
    assert main([*short, "--nnodes", "2", "--veth", "1", *api]) == 0
    assert "2 network namespaces joined by 1 veth link" in capsys.readouterr().out
    assert _listed() == before
