"""The connection of an agent to the coordinator is cut or reset, while both live."""

import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from launching import COMMAND, job
from quiet_clock import HANG_S
from thread_ranks import wait_until

from hccl_py.launcher.exit_codes import LOST_NODE

SCRIPT = """
import os, pathlib, time
os.write(1, b"ready\\n")
while not pathlib.Path({go!r}).exists():
    time.sleep(0.05)
os.write(1, b"done\\n")
raise SystemExit(int(os.environ["RANK"]) * {code})
"""
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends RST


class Proxy:
    """Passes connections on to the coordinator, until it resets or holds them all."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self.num_accepted = 0
        self.holds = self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def reset(self) -> None:
        """End every connection with RST, at both ends."""
        with self._lock:
            for one in self._pairs:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                one.close()
            self._pairs.clear()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self.reset()
        self._listener.close()

    def _run(self) -> None:
        while not self._is_over:
            if self.holds:  # nothing is read or accepted: the network is away
                time.sleep(0.02)
                continue
            with self._lock:
                ready, _, _ = select.select([self._listener, *self._pairs], [], [], 0)
                for one in ready:
                    self._serve(one)
            time.sleep(0.002)

    def _serve(self, one: socket.socket) -> None:
        if one is self._listener:
            here, _ = one.accept()
            self.num_accepted += 1
            try:
                there = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                here.close()
                return
            self._pairs[here], self._pairs[there] = there, here
            return
        other = self._pairs.get(one)
        if other is None:
            return
        data = b""
        with suppress(OSError):
            data = one.recv(1 << 16)
            other.sendall(data)
        if not data:
            for each in (one, other):
                del self._pairs[each]
                each.close()


@contextmanager
def two_nodes(
    port: int, tmp_path: Path, code: int = 0
) -> Iterator[tuple[Proxy, list[subprocess.Popen[str]], Path]]:
    """Start two nodes, the second one behind a proxy, and wait for their ranks."""
    go, script = tmp_path / "go", tmp_path / "script.py"
    script.write_text(SCRIPT.format(go=str(go), code=code))
    common = (*COMMAND, "--nnodes", 2, "--nproc", 1)
    with ExitStack() as opened:
        proxy = Proxy(port + 1)
        opened.callback(proxy.close)
        ports = (port, proxy.port - 1)
        nodes = [
            opened.enter_context(
                job(*common, "--node-rank", rank, "--master-port", ports[rank], script)
            )
            for rank in range(2)
        ]
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == "ready\n"
        yield proxy, nodes, go


def ends(nodes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    told = [node.communicate(timeout=HANG_S) for node in nodes]
    return [(node.returncode, *each) for node, each in zip(nodes, told, strict=True)]


@pytest.mark.parametrize("code", [0, 3])
def test_job_goes_on_when_its_connection_is_reset_again_and_again(
    port: int, tmp_path: Path, code: int
) -> None:
    with two_nodes(port, tmp_path, code) as (proxy, nodes, go):
        for _ in range(5):
            before = proxy.num_accepted
            proxy.reset()
            wait_until(lambda before=before: proxy.num_accepted > before, "it dials again")
        go.touch()
        ended = ends(nodes)
    assert [each[:2] for each in ended] == [(code, "done\n")] * 2, ended


def test_rank_that_fails_while_there_is_no_connection_is_reported(
    port: int, tmp_path: Path
) -> None:
    with two_nodes(port, tmp_path, 3) as (proxy, nodes, go):
        proxy.holds = True
        proxy.reset()
        go.touch()
        assert nodes[1].stdout is not None
        assert nodes[1].stdout.readline() == "done\n"
        proxy.holds = False
        ended = ends(nodes)
    assert [code for code, *_ in ended] == [3, 3], ended
    assert "rank 1 of 2 exited with code 3" in ended[0][2]


@pytest.mark.nightly("launchers")
def test_cuts_of_12_seconds_end_no_job(port: int, tmp_path: Path) -> None:
    with two_nodes(port, tmp_path) as (proxy, nodes, go):
        for _ in range(2):
            proxy.holds = True
            time.sleep(12)  # what is promised is a time
            proxy.holds = False
            before = proxy.num_accepted
            wait_until(lambda before=before: proxy.num_accepted >= before, "it is back")
            time.sleep(4)
            assert [node.poll() for node in nodes] == [None, None]
        go.touch()
        ended = ends(nodes)
    assert [each[:2] for each in ended] == [(0, "done\n")] * 2, ended


@pytest.mark.nightly("launchers")
def test_cut_that_does_not_end_is_a_lost_node_after_15_seconds(port: int, tmp_path: Path) -> None:
    with two_nodes(port, tmp_path) as (proxy, nodes, _):
        proxy.holds = True
        before_s = time.monotonic()
        ended = ends(nodes)
        took_s = time.monotonic() - before_s
    assert [code for code, *_ in ended] == [LOST_NODE] * 2, ended
    assert took_s > 14.5
