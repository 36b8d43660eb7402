"""Ranks that know nothing of each other but the bytes of a unique id."""

import errno
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from network_resets import strike
from quiet_clock import HANG_S
from ranks import run_ranks
from thread_ranks import wait_until
from tiers import by_night

from hccl_py import BootstrapError, Communicator, InvalidArgumentError, UniqueId, get_unique_id
from hccl_py.membership import unique_id
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.bootstrap import unique_id_store
from hccl_py.transport.bootstrap.unique_id_client import UniqueIdClient

TIMEOUT_S = HANG_S


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")
    monkeypatch.delenv("HCCL_COMM_ID", raising=False)


def join(uid: Any, rank: int, world_size: int, timeout_s: float = TIMEOUT_S) -> list[float]:
    with Communicator(uid, rank, world_size, timeout_s=timeout_s) as communicator:
        data = np.full(5, rank + 1.0)
        communicator.all_reduce(data)
        return data.tolist()


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def refuses(uid: UniqueId) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", uid.address.port)) == errno.ECONNREFUSED


def attempts(
    uid: Any, places: Sequence[tuple[int, int]], timeout_s: float = TIMEOUT_S
) -> list[str]:
    """Join as (rank, world size), all at once; return what each of them raised."""

    def attempt(place: tuple[int, int]) -> str:
        with pytest.raises(BootstrapError) as raised:
            join(uid, *place, timeout_s)
        return str(raised.value)

    with ThreadPoolExecutor(len(places)) as threads:
        return list(threads.map(attempt, places))


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("carried", [UniqueId, bytes, bytearray, memoryview])
def test_ranks_meet_by_the_id_that_one_process_made(carried: Any, world_size: int) -> None:
    uid = carried(get_unique_id())
    with ThreadPoolExecutor(world_size) as threads:
        sums = list(threads.map(lambda rank: join(uid, rank, world_size), range(world_size)))
    assert sums == [[world_size * (world_size + 1) / 2] * 5] * world_size


def test_id_survives_bytes_and_pickle_and_prints_no_secret() -> None:
    uid = get_unique_id()
    assert len(uid) == UniqueId.NUM_BYTES
    assert UniqueId(bytes(uid)) == pickle.loads(pickle.dumps(uid)) == uid
    assert isinstance(pickle.loads(pickle.dumps(uid)), UniqueId)
    assert get_unique_id() != uid
    assert uid.address.host == "127.0.0.1"
    for printed in (repr(uid), str(uid), f"{uid}", f"{uid.address!r}", f"{uid!s:>5}"):
        assert f"127.0.0.1:{uid.address.port}" in printed or "127.0.0.1" in printed
        assert repr(uid.address.secret)[2:-1] not in printed
        assert uid.address.secret.hex() not in printed


@pytest.mark.parametrize("damage", [0, 9, 40, 130, 200, 255])
def test_damaged_id_is_refused_at_once(damage: int) -> None:
    content = bytearray(get_unique_id())
    content[damage] ^= 1
    with pytest.raises(InvalidArgumentError, match="unique_id: expected"):
        Communicator(content, 0, 2)


def test_rank_that_comes_when_the_others_have_given_up_hears_why() -> None:
    uid = get_unique_id()
    attempts(uid, [(0, 2), (0, 2)])
    (told,) = attempts(uid, [(1, 2)])
    assert "two processes claim rank 0: pid" in told


@pytest.mark.parametrize(
    ("name", "garbage"),
    [
        ("HCCL_CONNECTIONS", "many"),
        *by_night("faults", ("HCCL_STALL_WARNING_S", "soon"), ("HCCL_NODE_ID", "\udcff")),
    ],
)
def test_setting_that_makes_no_sense_on_one_rank_is_named_to_a_rank_that_comes_later(
    name: str, garbage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uid = get_unique_id()
    monkeypatch.setenv(name, garbage)
    with pytest.raises(InvalidArgumentError, match=name):
        join(uid, 0, 2)
    monkeypatch.delenv(name)
    (told,) = attempts(uid, [(1, 2)])
    assert f"rank 0 on {socket.gethostname()}: {name}" in told


def test_id_is_good_for_one_communicator() -> None:
    uid = get_unique_id()
    join(uid, 0, 1)
    (told,) = attempts(uid, [(0, 1)])
    assert "make a new id for every communicator" in told


def test_who_does_not_know_the_secret_is_not_let_in() -> None:
    uid = get_unique_id()
    point = uid.address
    guess = UniqueIdClient(type(point)(point.host, point.port, bytes(32), "a guess"), TIMEOUT_S)
    with pytest.raises(BootstrapError, match="a guess"):
        guess.join(0, 1)
    guess.leave()
    assert join(uid, 0, 1) == [1.0] * 5  # it has not heard of the stranger


MAKER = """
import sys, hccl_py
assert "torch" not in sys.modules
print(bytes(hccl_py.get_unique_id()).hex(), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_end_of_the_process_that_made_the_id_ends_the_wait(killed: bool) -> None:
    with (
        subprocess.Popen(
            [sys.executable, "-c", MAKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as maker,
        ThreadPoolExecutor(1) as threads,
    ):
        assert maker.stdout is not None
        assert maker.stdin is not None
        uid = bytes.fromhex(maker.stdout.readline().decode())
        store = UniqueIdClient(UniqueId(uid).address, TIMEOUT_S)
        waiting = threads.submit(attempts, uid, [(1, 2)])
        store.get("member/1")  # it has come, and waits for the other
        store.leave()
        if killed:
            maker.kill()
        maker.stdin.close()
        (told,) = waiting.result(TIMEOUT_S)
    assert f"pid {maker.pid}" in told
    assert ("has ended" if killed else "ended before all ranks had met") in told


def meet_at_the_given_address(rank: int, world_size: int) -> list[list[float]]:
    return [join(get_unique_id(), rank, world_size) for _ in range(3)]


@pytest.mark.parametrize("secret", [{}, {"HCCL_SECRET": "a secret of the job"}])
def test_every_process_makes_the_same_id_of_hccl_comm_id(secret: dict[str, str]) -> None:
    env = {"HCCL_COMM_ID": f"127.0.0.1:{free_port()}", **secret}
    assert run_ranks(meet_at_the_given_address, 3, env=env) == [[[6.0] * 5] * 3] * 3


def test_meeting_at_hccl_comm_id_that_failed_makes_room_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HCCL_COMM_ID", f"127.0.0.1:{free_port()}")
    (told,) = attempts(get_unique_id(), [(0, 2)], timeout_s=0.5)
    assert "rank 1 of 2 did not arrive" in told
    assert join(get_unique_id(), 0, 1) == [1.0] * 5


def test_rank_that_comes_after_the_process_of_rank_0_ended_says_that_nobody_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("HCCL_COMM_ID", f"127.0.0.1:{port}")
    (told,) = attempts(get_unique_id(), [(1, 2)], timeout_s=0.5)
    assert f"127.0.0.1:{port}" in told and "no process serves it" in told and "rank 0" in told


def test_a_port_that_another_program_has_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("HCCL_COMM_ID", f"127.0.0.1:{port}")
        with pytest.raises(BootstrapError) as raised:
            Communicator(get_unique_id(), 0, 2, timeout_s=TIMEOUT_S)
    told = str(raised.value)
    assert f"port {port}: Address already in use; name a port that nothing uses" in told
    assert "HCCL_COMM_ID" in told
    assert "HCCL_PORT_RANGE" not in told


def test_id_whose_ranks_did_not_all_come_leaves_no_descriptor_and_no_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unique_id_store, "_LATE_S", 0.1)

    def fail() -> int:
        (told,) = attempts(get_unique_id(), [(0, 2)], timeout_s=0.2)
        assert "rank 1 of 2 did not arrive" in told
        return num_open()

    first = [fail() for _ in range(2)][-1]
    for _ in range(4):
        fail()
    wait_until(lambda: num_open() <= first + 2, "descriptors go")


def meet_with_a_secret(rank: int, world_size: int, secrets: list[str | None], by_id: bool) -> str:
    sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported
    secret = secrets[rank]
    if secret is not None:
        os.environ["HCCL_SECRET"] = secret
    try:
        given = (get_unique_id(), rank, world_size) if by_id else ()
        Communicator(*given, timeout_s=5.0)
    except (BootstrapError, InvalidArgumentError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("secrets", "by_id"),
    [
        (["right" * 8, "wrong" * 8, "right" * 8], False),
        *by_night(
            "faults",
            (["right" * 8, "wrong" * 8, "right" * 8], True),
            (["wrong" * 8, "right" * 8], False),
            (["wrong" * 8, "right" * 8, "right" * 8], True),
            ([None, "right" * 8, "right" * 8], False),
            (["right" * 8, "right" * 8, None], True),
            (["", "right" * 8], False),
            (["right" * 8, "", "right" * 8], True),
            (["", None, None], False),
            ([None, "", None], True),
        ),
    ],
)
def test_secret_of_one_rank_that_differs_is_named_by_all(
    secrets: list[str | None], by_id: bool
) -> None:
    """Rank 0 rejects the others at once; whom it admitted waits, as a stranger may be rejected."""
    port = free_port()
    env = {"MASTER_PORT": f"{port}", "TORCHELASTIC_USE_AGENT_STORE": ""}
    if by_id:
        env["HCCL_COMM_ID"] = f"127.0.0.1:{port}"
    told = run_ranks(meet_with_a_secret, len(secrets), secrets, by_id, env=env)
    for secret, text in zip(secrets, told, strict=True):
        assert "rightright" not in text and "wrongwrong" not in text
        if secret == "":
            assert text.startswith("HCCL_SECRET: expected a long random value"), told
        elif (secret or "") == (secrets[0] or ""):
            assert "HCCL_SECRET" in text, told
        else:
            assert "rejects this rank: HCCL_SECRET is another one there" in text, told


def test_id_to_which_no_rank_comes_is_freed_after_its_timeout() -> None:
    kept = get_unique_id()  # and with it what a process has once
    first = num_open()
    ids = [get_unique_id(timeout_s=0.3) for _ in range(10)]
    wait_until(lambda: num_open() <= first, "descriptors go")
    assert any(map(refuses, ids))  # of ten ports another program may have taken some by now
    assert join(kept, 0, 1) == [1.0] * 5


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), None, "30"])
def test_timeout_of_an_id_that_makes_no_sense_is_refused(timeout_s: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_s"):
        get_unique_id(timeout_s)


def test_clients_whose_connections_are_reset_between_all_questions_are_the_same() -> None:
    address = get_unique_id().address
    clients = [UniqueIdClient(address, TIMEOUT_S) for _ in range(2)]
    for rank, client in enumerate(clients):
        for _ in range(2):  # as a client that got no answer
            client.join(rank, 2)
            strike(address.port)
        client.set(f"{rank}", b"here")
        strike(address.port)
    for rank, client in enumerate(clients):
        assert client.get(f"{1 - rank}") == b"here"
        strike(address.port)
        assert client.compare_set("first", b"", b"%d" % rank) == b"0"
    for client in clients:
        strike(address.port)
        client.leave()
    with pytest.raises(BootstrapError, match="has ended"):  # all have left
        UniqueIdClient(address, TIMEOUT_S).join(0, 2)


@pytest.mark.parametrize("world_size", [1, 2])
def test_rank_that_does_not_come_back_has_left(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the server it was killed: its connection is lost, and it asks nothing more."""
    monkeypatch.setattr(unique_id_store, "_AWAY_S", 0.1)
    monkeypatch.setattr(unique_id_store, "_LATE_S", 0.1)
    address = get_unique_id().address
    client = UniqueIdClient(address, TIMEOUT_S)
    client.join(0, world_size)
    strike(address.port)
    at = address.host, address.port
    wait_until(lambda: socket.socket().connect_ex(at) != 0, "the server has closed")


def test_rank_that_comes_back_has_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_id_store, "_AWAY_S", 0.5)
    address = get_unique_id().address
    client = UniqueIdClient(address, TIMEOUT_S)
    client.join(0, 1)
    strike(address.port)
    client.set("key", b"value")
    until_s = time.monotonic() + 3 * unique_id_store._AWAY_S
    while time.monotonic() < until_s:
        assert client.get("key") == b"value"
    client.leave()


def test_ranks_meet_while_their_connections_with_the_store_are_reset() -> None:
    uid, ends = get_unique_id(), threading.Event()

    def strikes() -> None:
        for _ in range(40):
            strike(uid.address.port)
            ends.wait(0.01)

    with ThreadPoolExecutor(4) as threads:
        storm = threads.submit(strikes)
        sums = [threads.submit(join, uid, rank, 3) for rank in range(3)]
        assert [one.result() for one in sums] == [[6.0] * 5] * 3
        ends.set()
        storm.result()


def test_process_that_reports_for_another_starts_none_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have no descriptor either, and each would start the next without end."""
    started: list[Any] = []
    monkeypatch.setattr(os, "posix_spawn", lambda *given: started.append(given))
    monkeypatch.setenv(unique_id._REPORTED_TO, "")
    unique_id.report_by_another_process("no descriptor is left")
    assert not started
