"""Which RDMA port and GID is chosen on hosts of other shapes, from files as in /sys."""

from pathlib import Path

import pytest
from rdma_ports import IPV4, IPV6, LINK_LOCAL, V1, V2, make_port

from hccl_py.transport.errors import BootstrapError, InvalidArgumentError
from hccl_py.transport.providers.verbs.choice import candidates, choose
from hccl_py.transport.providers.verbs.devices import list_ports, roce_mtu
from hccl_py.transport.providers.verbs.settings import RdmaSettings


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Two cards of one kind, one of another kind that is down, one InfiniBand card."""
    make_port(tmp_path, "mlx5_0", "eth0")
    make_port(tmp_path, "mlx5_1", "eth1")
    make_port(tmp_path, "rxe0", "eth2", state="1: DOWN")
    make_port(tmp_path, "ib0", "", [(LINK_LOCAL, V1)], layer="InfiniBand")
    make_port(tmp_path, "other0", "", layer="Unspecified")
    return tmp_path


@pytest.mark.parametrize(
    ("hca", "interfaces", "chosen"),
    [
        (None, [], ["mlx5_0"]),
        (None, ["eth1"], ["mlx5_1"]),
        (None, ["eth7"], ["mlx5_0"]),
        ("mlx5_1", ["eth0"], ["mlx5_1"]),
        ("mlx5_1,mlx5_0", ["eth0"], ["mlx5_1", "mlx5_0"]),
        ("mlx5", ["eth0"], ["mlx5_0", "mlx5_1"]),
        ("^mlx5_0", [], ["mlx5_1"]),
        ("=mlx5_1:1", [], ["mlx5_1"]),
        ("rxe0,mlx5_1", [], ["mlx5_1"]),
        ("^ib0", [], ["mlx5_0"]),
        ("ib0,mlx5", [], ["ib0", "mlx5_0", "mlx5_1"]),
    ],
)
def test_usable_ports_that_are_named_are_chosen_or_that_of_the_ranks_interface(
    host: Path, hca: str | None, interfaces: list[str], chosen: list[str]
) -> None:
    found = choose(list_ports(host), RdmaSettings(hca), interfaces)
    assert [port.device for port, _ in found] == chosen
    # RoCE v2 over IPv4; InfiniBand's own.
    assert [gid.index for _, gid in found] == [0 if one == "ib0" else 4 for one in chosen]


@pytest.mark.parametrize(
    ("gids", "index"),
    [
        ([(LINK_LOCAL, V2), (IPV6, V2)], 1),
        ([(LINK_LOCAL, V1), (LINK_LOCAL, V2)], 1),
        ([(IPV6, V1), (IPV4, V2), (IPV6, V2)], 1),
    ],
)
def test_gid_is_the_most_routable_of_roce_v2(
    tmp_path: Path, gids: list[tuple[str, str]], index: int
) -> None:
    make_port(tmp_path, "rxe0", "eth0", gids)
    ((_, gid),) = choose(list_ports(tmp_path), RdmaSettings())
    assert gid.index == index


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        (
            RdmaSettings("rxe0,other0"),
            {
                "rxe0": "it is DOWN: ip link set eth2 up, cable in",
                "other0": "its link layer is Unspecified, expected Ethernet or InfiniBand",
                "mlx5_0": "HCCL_IB_HCA=rxe0,other0 leaves it out",
            },
        ),
        (
            RdmaSettings(gid_index=9),
            {"mlx5_0": "HCCL_IB_GID_INDEX=9 is not set; there are 0: fe80"},
        ),
        (RdmaSettings(gid_index=3), {"mlx5_1": "is not RoCE v2; unset HCCL_IB_GID_INDEX"}),
    ],
)
def test_port_that_cannot_be_used_says_why(
    host: Path, settings: RdmaSettings, problems: dict[str, str]
) -> None:
    found = {one.port.device: one.problem for one in candidates(list_ports(host), settings)}
    for device, problem in problems.items():
        assert problem in found[device]
    with pytest.raises(BootstrapError, match="no RDMA port can be used"):
        choose(list_ports(host), settings)


def test_host_without_devices_is_told_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="rdma link add rxe0 type rxe netdev"):
        choose(list_ports(tmp_path / "absent"), RdmaSettings())


@pytest.mark.parametrize(
    ("mtu", "num_bytes"),
    [("1500", 1024), ("4200", 4096), ("9000", 4096), ("4095", 2048), ("300", None)],
)
def test_packets_fit_the_mtu_of_their_interface(
    mtu: str, num_bytes: int | None, tmp_path: Path
) -> None:
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "mtu").write_text(f"{mtu}\n")
    assert roce_mtu("eth0", tmp_path) == num_bytes
    assert roce_mtu("eth1", tmp_path) is None
    assert roce_mtu("", tmp_path) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("HCCL_IB_TIMEOUT", "32", "a number from 1 to 31, got '32'"),
        ("HCCL_IB_RETRY_CNT", "many", "a number from 0 to 7, got 'many'"),
        ("HCCL_IB_QPS_PER_CONNECTION", "17", "a number from 1 to 16, got '17'"),
        ("HCCL_IB_REGISTERED_BYTES", "1G", "a number from 0 to"),
        ("HCCL_IB_GID_INDEX", "-1", "a number from 0 to 255, got '-1'"),
    ],
)
def test_setting_that_makes_no_sense_is_named(name: str, value: str, expected: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        RdmaSettings.from_environment({name: value})
    assert f"{name}: expected" in str(caught.value)
    assert expected in str(caught.value)
