"""A job whose ports are attacked while it works: strangers are rejected, the job notices nothing.

HCCL_TEST_ROUNDS=100 makes the floods 10,000 connections each instead of 100.
"""

import contextlib
import json
import logging
import os
import re
import resource
import secrets
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from injections import write_mark
from namespaces import TWO_HOSTS, Hosts, call_inside
from network_resets import open_sockets
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator
from hccl_py.transport.network.identity import PROTOCOL_VERSION

PATIENCE_S = 60.0
FLOOD = 100 * int(os.environ.get("HCCL_TEST_ROUNDS", "1"))
HELLO = struct.Struct("!8sHHIIII16s32s")

Address = tuple[str, int]


def hello(version: int) -> bytes:
    return HELLO.pack(b"HCCL-PY\0", version, 1, 1, 0, 0, 0, bytes(16), secrets.token_bytes(32))


GARBAGE = {
    "random bytes": secrets.token_bytes(4096),
    "another protocol": b"GET / HTTP/1.1\r\n\r\n".ljust(100),
    "another version": hello(PROTOCOL_VERSION + 1),
    "the right version, no secret": hello(PROTOCOL_VERSION) + bytes(32),
    "lengths without end": b"\xff" * 1_000_000,
    "the control plane's, no communicator": b"HCCL-CT1" + bytes(56),
}


class Rank:
    """One rank of the job: it reduces, checks every result, and tells what it has open."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder, self.rank = Path(folder), rank
        self.lines: list[str] = []
        self.num_open = self.num_rounds = 0

    def run(self, world_size: int, num_descriptors: int) -> dict[str, Any]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors, num_descriptors))
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("hccl_py.transport")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)  # of breaks that are brief
        with Communicator(timeout_s=PATIENCE_S) as comm:
            self._round(comm)
            before_kb, before_open = _resident_kb(), self._look()
            write_mark(self.folder / f"{self.rank}.json", json.dumps(_listening()))
            while self._round(comm):
                self._look()
                if any("works again" in line for line in self.lines):
                    (self.folder / "mended").touch()
                if self.rank == world_size - 1 and (self.folder / "cut").exists():
                    (self.folder / "cut").unlink()
                    _cut_a_connection(ports_of_rank_0(self.folder))
            grown_kb = _resident_kb() - before_kb
        return {
            "lines": self.lines,
            "rounds": self.num_rounds,
            "grown_mb": grown_kb / 1024,
            "before": before_open,
            "peak": self.num_open,
        }

    def _round(self, comm: Communicator) -> bool:
        """Reduce, check, and agree on whether to go on."""
        for count in (1, 3001):
            data = np.arange(count, dtype=np.float64) + comm.rank
            comm.all_reduce(data)
            total = comm.world_size * (comm.world_size - 1) / 2
            assert np.array_equal(data, np.arange(count) * comm.world_size + total)
        stop = np.array([(self.folder / "stop").exists()], dtype=np.int32)
        comm.broadcast(stop, root=0)
        self.num_rounds += 1
        return not stop[0]

    def _look(self) -> int:
        now_open = len(os.listdir("/proc/self/fd"))
        self.num_open = max(self.num_open, now_open)
        return now_open


def work_under_attack(
    rank: int, world_size: int, folder: str, num_descriptors: int
) -> dict[str, Any]:
    return Rank(folder, rank).run(world_size, num_descriptors)


def ports_of_rank_0(folder: Path) -> list[Address]:
    return [tuple(one) for one in json.loads((folder / "0.json").read_text())]


def _resident_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


def _listening() -> list[Address]:
    """Return where this process listens for other hosts."""
    return sorted(
        {
            copy.getsockname()[:2]
            for _, copy in open_sockets()
            if copy.family != socket.AF_UNIX
            and copy.type == socket.SOCK_STREAM
            and copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        }
    )


def _cut_a_connection(ports: list[Address]) -> None:
    """Break a connection that was dialled to one of these ports, as a middlebox would."""
    for _, copy in open_sockets():
        with contextlib.suppress(OSError):
            if copy.family == socket.AF_INET and copy.getpeername() in ports:
                copy.shutdown(socket.SHUT_RDWR)
                return
    raise AssertionError("no connection to cut")


class Job:
    """The ranks, in processes, and what attacks them."""

    def __init__(self, folder: Path, hosts: Hosts | None, num_descriptors: int) -> None:
        self.folder, self.hosts = folder, hosts
        self._pool = ThreadPoolExecutor(1)
        env: Callable[[int], dict[str, str]] = lambda rank: {  # noqa: E731
            "HCCL_NODE_ID": str(rank // 2),
            "HCCL_CONNECTIONS": "2",
            "HCCL_SECRET": "correct horse battery staple",
        }
        self._ranks: Future[list[dict[str, Any]]] = self._pool.submit(
            run_ranks,
            work_under_attack,
            4,
            str(folder),
            num_descriptors,
            timeout_s=PATIENCE_S * 4,
            env=env,
            hosts=hosts,
        )

    def ports(self) -> list[Address]:
        """Wait until the job works; return where rank 0 listens."""
        files = [self.folder / f"{rank}.json" for rank in range(4)]
        wait_until(
            lambda: self._ranks.done() or all(file.exists() for file in files), "work", PATIENCE_S
        )
        assert not self._ranks.done(), self._ranks.exception()
        return ports_of_rank_0(self.folder)

    def attack(self, action: Callable[[], Any]) -> None:
        """Run an attack from the attacked rank's host."""
        call_inside(self.hosts.names[0], action) if self.hosts else action()

    def finish(self) -> list[dict[str, Any]]:
        (self.folder / "stop").touch()
        results = self._ranks.result(timeout=PATIENCE_S * 5)
        self._pool.shutdown()
        return results


def dial(address: Address) -> socket.socket:
    client = socket.socket()
    client.settimeout(PATIENCE_S)
    client.connect(address)
    return client


def say(address: Address, garbage: bytes) -> None:
    """Send it, and wait to be hung up on."""
    with dial(address) as client, contextlib.suppress(ConnectionError):
        client.sendall(garbage)
        while client.recv(65536):
            pass


def flood(address: Address) -> None:
    """Connect as often as it takes, keep all of them, and say nothing."""
    clients = []
    for number in range(FLOOD):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(address)
        clients.append(client)
        if number % 100 == 99:
            time.sleep(0.005)  # let the others have the core
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("where", "num_descriptors"),
    [
        pytest.param("emulated nodes", 256, marks=pytest.mark.nightly("faults")),
        pytest.param("hosts", 1024, marks=TWO_HOSTS),
    ],
)
def test_job_under_attack_goes_on_and_logs_little(
    where: str, num_descriptors: int, tmp_path: Path
) -> None:
    with Hosts(num_links=1) if where == "hosts" else contextlib.nullcontext() as hosts:
        job = Job(tmp_path, hosts, num_descriptors)
        ports = job.ports()
        # Between hosts the control plane listens too.
        assert len(ports) == (2 if hosts else 1), ports
        for address in ports:
            for garbage in GARBAGE.values():
                job.attack(lambda a=address, g=garbage: say(a, g))  # type: ignore[misc]
            (tmp_path / "cut").touch()
            job.attack(lambda a=address: flood(a))  # type: ignore[misc]
        if not hosts:  # there it may have been a connection of the control plane
            wait_until((tmp_path / "mended").exists, "what broke in the flood", PATIENCE_S)
        results = job.finish()
    told = results[0]["lines"]
    refused = [line for line in told if "rejected" in line and "trying again" not in line]
    assert any("does not speak this protocol" in line for line in refused), told
    assert all(re.search(r"\d+\.\d+\.\d+\.\d+:\d+|this machine|unknown", line) for line in refused)
    assert len(refused) <= 16 * len(ports) + 4, "a flood must not flood the log"
    for result in results:
        assert result["peak"] <= num_descriptors - 8, result
        assert result["grown_mb"] < 64, result
