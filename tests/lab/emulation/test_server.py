"""The process that plays the network outlives ranks that end, or speak, at the wrong moment."""

import array
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from quiet_clock import HANG_S

from hccl_py.lab.emulation.cluster import Cluster, LinkCut
from hccl_py.lab.emulation.network import NetworkClient
from hccl_py.lab.emulation.server import Server
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.network.settings import EMULATED_NETWORK

CLUSTER = Cluster(2, 1, 12.5e6, 16e3, 0.0, {}, {}, (LinkCut(9, (0, 1), 0.1),))
STEP = {"step": 1, "rank": 0, "at_ns": 1}


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"hccl-test-{uuid.uuid4().hex}"
    monkeypatch.setenv(EMULATED_NETWORK, f"hccl_py.lab.emulation.rank:{name}")
    return name


@pytest.fixture
def listener(name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bound:
        bound.bind(f"\0{name}")
        bound.listen()
        yield bound


@contextmanager
def serving(listener: socket.socket) -> Iterator[Server]:
    told, launcher = os.pipe()
    server = Server(CLUSTER, listener, launcher)
    readable, writable = os.pipe()
    thread = threading.Thread(target=server.run, args=[readable], daemon=True)
    thread.start()
    try:
        yield server
        assert thread.is_alive()
    finally:
        os.close(writable)
        thread.join(HANG_S)
        for end in (readable, launcher):
            os.close(end)
        with open(told) as lines:
            assert set(lines) <= {"alive\n"}


def rank(name: str) -> socket.socket:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connected.settimeout(HANG_S)
    connected.connect(f"\0{name}")
    return connected


def assert_serves(name: str) -> None:
    with rank(name) as another:
        assert another.recv(1) == b"1"
        another.send(json.dumps(STEP).encode())
        assert another.recv(1) == b"."


def test_rank_that_died_before_its_answer_does_not_end_the_network(
    name: str, listener: socket.socket
) -> None:
    rank(name).close()
    with rank(name) as dead:
        dead.send(json.dumps(STEP).encode())
    with serving(listener):
        assert_serves(name)


def test_fault_is_made_at_its_step_and_once(
    name: str, listener: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(listener) as server, rank(name) as one:
        assert one.recv(1) == b"1"
        for step, waiting in ((8, 1), (9, 0), (10, 0)):
            one.send(json.dumps({**STEP, "step": step}).encode())
            assert one.recv(1) == b"."
            assert len(server.faults) == waiting
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith("step 9: the link 0-1 is cut for 0.1 s")


@pytest.mark.parametrize(
    "packet",
    [
        b"{",
        b"\xff",
        b"[]",
        b"3",
        json.dumps({"step": 1}).encode(),
        json.dumps({"carry": ["emulated-node-0", "emulated-node-1"]}).encode(),
        json.dumps({"communicator": ["world", 0, 2], "node": "here", "calls": []}).encode(),
        json.dumps({"communicator": ["w", 0, 2], "node": "emulated-node-0", "calls": [1]}).encode(),
    ],
)
def test_wrong_message_ends_the_connection_of_its_rank_alone(
    name: str, listener: socket.socket, packet: bytes, capfd: Any
) -> None:
    with serving(listener):
        with rank(name) as wrong:
            assert wrong.recv(1) == b"1"
            wrong.send(packet)
            assert wrong.recv(1) == b""
        assert_serves(name)
    assert f"a message of process {os.getpid()} was not understood" in capfd.readouterr().err


@pytest.mark.parametrize("nodes", [("emulated-node-0", "emulated-node-7"), ("a", "b")])
def test_descriptors_of_a_wrong_message_are_closed(
    name: str, listener: socket.socket, nodes: tuple[str, str]
) -> None:
    with serving(listener), rank(name) as wrong:
        assert wrong.recv(1) == b"1"
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                numbers = array.array("i", [theirs.fileno(), theirs.fileno()])
                message = json.dumps({"carry": nodes}).encode()
                wrong.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
                assert wrong.recv(1) == b""
            mine.settimeout(HANG_S)
            assert mine.recv(1) == b""  # every copy of the other end is closed


def test_rank_gives_nothing_to_a_stranger_who_took_the_name(
    name: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = NetworkClient()
    monkeypatch.setattr(
        "hccl_py.lab.emulation.network.peer_process", lambda _: (1, os.getuid() + 1)
    )
    with pytest.raises(BootstrapError, match="its name was taken by user"):
        network.report(STEP)
    accepted, _ = listener.accept()
    with closing(accepted):
        assert accepted.recv(1) == b""  # not one message
