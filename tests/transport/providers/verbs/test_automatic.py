"""When HCCL_TRANSPORT=auto uses RDMA, on hosts of other shapes."""

import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
from rdma_ports import IPV6, LINK_LOCAL, V2, make_port

from hccl_py.transport.providers.verbs import automatic, library, locked_memory
from hccl_py.transport.providers.verbs.devices import list_ports
from hccl_py.transport.providers.verbs.library import Problem


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One card on eth0, one that is down on eth1, and one with IPv6 alone on eth2."""
    make_port(tmp_path, "mlx5_0", "eth0")
    make_port(tmp_path, "mlx5_1", "eth1", state="1: DOWN")
    make_port(tmp_path, "mlx5_2", "eth2", [(LINK_LOCAL, V2), (IPV6, V2)])
    monkeypatch.setattr(automatic, "list_ports", lambda: list_ports(tmp_path))
    monkeypatch.setattr(automatic, "opening_problem", lambda _: None)
    return tmp_path


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("interface", "family"),
    [("eth0", "IPv4"), ("eth1", ""), ("eth2", "IPv6"), ("eth3", ""), ("lo", "")],
)
def test_rank_looks_at_the_port_of_its_interface(interface: str, family: str) -> None:
    assert automatic.usable_family([interface]) == family


@pytest.mark.usefixtures("host")
def test_rank_that_could_not_open_the_device_stays_with_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Problem("it has no driver", "apt install ibverbs-providers")
    monkeypatch.setattr(automatic, "opening_problem", lambda _: problem)
    with caplog.at_level("INFO", "hccl_py.transport"):
        assert automatic.usable_family(["eth0"]) == ""
    assert str(problem) in caplog.text


@pytest.mark.usefixtures("host")
def test_setting_that_leaves_the_port_out_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_IB_HCA", "^mlx5_0")
    assert automatic.usable_family(["eth0"]) == ""


def test_host_without_rdma_ignores_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "list_ports", lambda: list_ports(tmp_path))
    monkeypatch.setenv("HCCL_IB_TIMEOUT", "later")
    assert automatic.usable_family(["eth0"]) == ""


def test_limit_of_locked_memory_is_not_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, 1 << 20))
    monkeypatch.setattr(locked_memory.os, "geteuid", lambda: 1000)
    assert locked_memory.locked_bytes() == 1 << 20
    monkeypatch.setattr(locked_memory.os, "geteuid", lambda: 0)
    assert locked_memory.locked_bytes() is None


@pytest.mark.parametrize(
    ("families", "agreed"),
    [
        (["IPv4", "IPv4"], True),
        (["IPv6", "IPv6", "IPv6"], True),
        (["IPv4", ""], False),
        (["IPv4", "IPv6"], False),
        (["", ""], False),
    ],
)
def test_every_rank_needs_a_port_of_one_family(families: list[str], agreed: bool) -> None:
    assert automatic.agreed(families) is agreed


def test_library_that_is_missing_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FILE", "libibverbs-that-is-missing.so.1")
    for problem in (library.library_problem(), library.opening_problem("mlx5_0")):
        assert problem is not None
        assert "libibverbs-that-is-missing.so.1" in problem.cause
        assert "apt install ibverbs-providers" in problem.remedy


@pytest.mark.parametrize(
    ("names", "may_open", "text"),
    [
        ([], True, "no driver for it; apt install ibverbs-providers"),
        (["mlx5_0"], False, "--device /dev/infiniband"),
        (["mlx5_0"], True, ""),
    ],
)
def test_device_that_cannot_be_opened_says_why(
    names: list[str], may_open: bool, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_load", SimpleNamespace)
    monkeypatch.setattr(library, "_names", lambda _: names)
    monkeypatch.setattr(library, "may_open", lambda _: may_open)
    problem = library.opening_problem("mlx5_0")
    assert (text in str(problem)) if text else (problem is None)
