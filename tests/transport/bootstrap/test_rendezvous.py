"""The rendezvous at the store, over torch's real stores."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
import torch.distributed
from quiet_clock import HANG_S

from hccl_py.transport.bootstrap.rendezvous import MAX_INFO_BYTES, PeerInfo, RendezvousResult, meet
from hccl_py.transport.control.message import ControlAddress
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.identity import Endpoint, Identity

TIMEOUT_S = HANG_S
dist: Any = torch.distributed  # its stubs do not export the stores


def info(pid: int, world_size: int = 2, **changes: Any) -> PeerInfo:
    identity = Identity("host", pid, "boot", 1, "")
    endpoints = (Endpoint("eth0", "10.0.0.1", pid),)
    made = PeerInfo(
        identity,
        world_size,
        1,
        f"hccl-{pid}",
        endpoints,
        None,
        control=ControlAddress(port=1),
    )
    return replace(made, **changes)


def at(host: str, interface: str = "eth0") -> tuple[Endpoint, ...]:
    return (Endpoint(interface, host, 5),)


def on_node(one: PeerInfo, **changes: Any) -> PeerInfo:
    return replace(one, identity=replace(one.identity, **changes))


def meet_all(
    stores: list[Any],
    infos: list[PeerInfo],
    secrets: list[bytes | None] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[RendezvousResult | str]:
    """Let all ranks meet at once; errors come back as their messages."""

    def one(rank: int) -> RendezvousResult | str:
        secret = secrets[rank] if secrets else None
        try:
            return meet(stores[rank], rank, infos[rank], secret, Deadline(timeout_s))
        except BootstrapError as error:
            return str(error)

    with ThreadPoolExecutor(len(infos)) as pool:
        return list(pool.map(one, range(len(infos))))


@pytest.fixture(params=["hash", "prefix", "file", "tcp"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Any]]:
    """Return one handle per rank on a store of two ranks."""
    if request.param == "file":
        yield [dist.FileStore(str(tmp_path / "store"), 2) for _ in range(2)]
    elif request.param == "tcp":
        first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        yield [first, dist.TCPStore("127.0.0.1", first.port, is_master=False)]
    else:
        shared = dist.HashStore()
        yield [
            dist.PrefixStore("hccl/1", shared) if request.param == "prefix" else shared
            for _ in range(2)
        ]


def test_meet_every_store_of_torch_agrees(stores: list[Any]) -> None:
    here, there = meet_all(stores, [info(1), info(2)])
    assert isinstance(here, RendezvousResult)
    assert here == there
    assert here.infos == (info(1), info(2))
    assert (len(here.secret), len(here.communicator_id)) == (32, 16)
    assert here.secret.hex() not in repr(here) and repr(here.secret) not in repr(here)


def test_meet_missing_rank_is_named_over_every_store(stores: list[Any]) -> None:
    with pytest.raises(BootstrapError, match=r"after .*allowed 0\.3 s.*: rank 1 of 2 did not arr"):
        meet(stores[0], 0, info(1), None, Deadline(0.3))


def test_meet_error_of_rank_0_reaches_all() -> None:
    store = dist.HashStore()
    with pytest.raises(BootstrapError):
        meet(store, 0, info(1), None, Deadline(0.1))
    with pytest.raises(BootstrapError, match="rank 1: rank 0 ended the bootstrap.*rank 1 of 2"):
        meet(store, 1, info(2), None, Deadline(TIMEOUT_S))


@pytest.mark.parametrize(
    "other, message",
    [
        (info(2, world_size=3), "rank 1 has world_size 3, rank 0 has 2"),
        (
            on_node(info(2, endpoints=(), tcp_problem="no cable"), node_id="b"),
            "rank 1 on host has peers on other nodes but cannot listen: no cable",
        ),
        (
            on_node(info(2, endpoints=at("127.0.0.1")), boot_id="other"),
            "rank 1 on host listens on 127.0.0.1, which other machines cannot reach",
        ),
        (
            info(2, settings={"HCCL_CONNECTIONS": "4"}),
            "HCCL_CONNECTIONS is not set on rank 0, '4' on rank 1: give all ranks the same",
        ),
        (info(2, settings={"HCCL_TLS": 1}), "the peer info of rank 1 is damaged: settings"),
        (
            on_node(info(2, endpoints=at("fd00::2", "eth1")), node_id="b"),
            "listens on fd00::2 (eth1) where rank 0 listens on 10.0.0.1 (eth0): choose the",
        ),
        (info(2, unix_name=5), "the peer info of rank 1 is damaged: unix_name is not"),
        (info(2, endpoints=(Endpoint("eth0", "10.0.0.2", "5"),)), "damaged: port is not"),  # type: ignore[arg-type]
        (info(2, endpoints=at("example.org")), "the peer info of rank 1 is damaged: 'example.org'"),
    ],
)
def test_meet_disagreement_is_the_same_error_on_both_ranks(other: PeerInfo, message: str) -> None:
    store = dist.HashStore()
    for outcome in meet_all([store, store], [info(1), other]):
        assert isinstance(outcome, str) and message in outcome


@pytest.mark.parametrize(
    "secrets", [[b"one", b"two"], [b"one", None], [None, b"two"]], ids=["both", "rank 0", "rank 1"]
)
def test_meet_different_secrets_are_rejected(secrets: list[bytes | None]) -> None:
    store = dist.HashStore()
    for outcome in meet_all([store, store], [info(1), info(2)], secrets):
        assert isinstance(outcome, str) and "set HCCL_SECRET to the same value" in outcome


def test_meet_same_secret_is_used_and_not_published() -> None:
    store = dist.HashStore()
    for outcome in meet_all([store, store], [info(1), info(2)], [b"one", b"one"]):
        assert isinstance(outcome, RendezvousResult) and outcome.secret == b"one"
    assert msgpack.unpackb(store.get("members")[32:])["secret"] is None


def test_meet_two_processes_of_one_rank_are_told() -> None:
    store = dist.HashStore()
    assert all(
        isinstance(one, RendezvousResult) for one in meet_all([store] * 2, [info(1), info(2)])
    )
    with pytest.raises(BootstrapError, match="two processes claim rank 1: pid 3 .* pid 2 on host"):
        meet(store, 1, info(3), None, Deadline(TIMEOUT_S))


@pytest.mark.parametrize("size", [0, 5, 32, 40, 10 * MAX_INFO_BYTES])
@pytest.mark.parametrize("key, rank", [("member/1", 0), ("members", 1)])
def test_meet_damaged_values_are_rejected(key: str, rank: int, size: int) -> None:
    store = dist.HashStore()
    store.set(key, b"\xc1" * size)
    with pytest.raises(BootstrapError, match="does not verify|has 40960 bytes"):
        meet(store, rank, info(rank + 1), None, Deadline(TIMEOUT_S))
