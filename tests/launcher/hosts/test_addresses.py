"""Names of hosts: all unknown ones at once, and which host is this machine."""

import shutil
import socket
import threading

import pytest
from quiet_clock import Moment

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts import addresses
from hccl_py.launcher.hosts.addresses import locate
from hccl_py.launcher.hosts.host_list import Host
from hccl_py.launcher.hosts.options import SshOptions

NEEDS_SSH = pytest.mark.skipif(shutil.which("ssh") is None, reason="apt-get install openssh-client")


def test_unknown_names_are_refused_together() -> None:
    hosts = [Host("localhost", 1), Host("one.invalid", 1), Host("two.invalid", 1)]
    with pytest.raises(UsageError, match=r"no address for one\.invalid \(.*two\.invalid") as caught:
        locate(hosts, SshOptions())
    assert "localhost" not in str(caught.value)


def test_name_server_that_is_silent_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.wait() and [])
    began = Moment.now()
    with pytest.raises(UsageError, match="a .no answer of the name server.*, b .no answer"):
        locate([Host("a", 1), Host("b", 1)], SshOptions(), timeout_s=0.3)
    assert Moment.now() - began < 2
    answers.set()


@NEEDS_SSH
def test_own_addresses_and_own_user_are_here() -> None:
    loopback, other_user, other = locate(
        [Host("127.0.0.1", 1), Host("127.0.0.1", 1, "somebody-else"), Host("192.0.2.7", 1)],
        SshOptions(),
    )
    assert loopback.is_here
    assert not other_user.is_here
    assert not other.is_here
    assert other.addresses == ("192.0.2.7",)


@NEEDS_SSH
def test_configuration_of_ssh_gives_a_name_its_address() -> None:
    (found,) = locate([Host("alias.invalid", 1)], SshOptions(options=("HostName=192.0.2.7",)))
    assert found.addresses == ("192.0.2.7",)
    assert found.is_alias
    (behind,) = locate([Host("inner.invalid", 1)], SshOptions(options=("ProxyJump=gate.invalid",)))
    assert behind == addresses.Location(Host("inner.invalid", 1), (), False, True)
    (known,) = locate([Host("LocalHost", 1)], SshOptions())
    assert not known.is_alias


def test_host_that_needs_ssh_without_ssh_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert locate([Host("127.0.0.1", 1)], SshOptions())[0].is_here
    with pytest.raises(UsageError, match="192.0.2.7: reached by ssh, which is not installed here"):
        locate([Host("192.0.2.7", 1)], SshOptions())
