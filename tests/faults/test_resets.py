"""Connections between nodes that are reset while both processes live: calls end, and right.

Which of them, when and how often makes no difference, with any provider.
"""

import contextlib
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from broken_sockets import engine_sockets, open_socket_inodes, other_sockets, socket_inode
from namespaces import Hosts, firewall
from network_resets import reset
from rank_processes import on_nodes
from ranks import run_ranks
from tiers import by_night

from hccl_py import Communicator
from hccl_py.transport.bootstrap import mesh

NUM_RANKS = 4
LARGE, SMALL = 1 << 20, 3
TRANSPORTS = ("tcp", "auto", "zmq", "verbs_over_tcp")
TIMEOUT_S = 60.0
STORM_S = 60.0
START_STORM_S = 4.0
SUBSETS = ("all", "data", "control", "coordinator", "half")


class Resets:
    """Resets connections of one rank from a thread, at random moments."""

    def __init__(
        self, comm: Communicator, before: set[int], num_peers: int, which: str, seed: int
    ) -> None:
        """Take the engine's TCP sockets of now, with `num_peers` ranks of other nodes."""
        self._comm, self._before, self._which = comm, before, which
        self._chance = random.Random(seed)
        at_start = engine_sockets(comm, socket.AF_INET)  # of each peer: control, then its lanes
        per_peer = len(at_start) // num_peers
        self._controls = set(map(socket_inode, at_start[::per_peer]))
        self.num = 0

    def strike(self) -> None:
        chosen = list(self._chosen())
        if self._which == "half":
            chosen = self._chance.sample(chosen, len(chosen) // 2)
        for descriptor in chosen:
            reset(descriptor)
            self.num += 1

    def _chosen(self) -> Iterator[int]:
        for descriptor in engine_sockets(self._comm, socket.AF_INET):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                kind = "control" if socket_inode(descriptor) in self._controls else "data"
                if self._which in ("all", "half", kind):
                    yield descriptor
        if self._which != "control":
            yield from filter(_is_tcp, other_sockets(self._comm, self._before))

    def storm(self, seconds: float) -> threading.Thread:
        """Strike again and again for so long."""

        def strikes() -> None:
            until_s = time.monotonic() + seconds
            while time.monotonic() < until_s:
                time.sleep(self._chance.uniform(0, 1))
                self.strike()

        thread = threading.Thread(target=strikes)
        thread.start()
        return thread


def _is_tcp(descriptor: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM
    return False


def check_round(comm: Communicator, number: int) -> None:
    for count in (SMALL, LARGE):
        data = np.arange(count, dtype=np.int64) * (comm.rank + 1) + number
        comm.all_reduce(data)
        factor = comm.world_size * (comm.world_size + 1) // 2
        assert np.array_equal(data, np.arange(count) * factor + number * comm.world_size)
    got = np.zeros(SMALL, np.int64)
    to, source = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    sent = comm.nonblocking.send(np.full(SMALL, number + comm.rank), to)
    comm.recv(got, source)
    sent.wait()
    assert got.tolist() == [number + source] * SMALL


def is_reset_once(rank: int, world_size: int, which: str, when: str) -> int:
    before = open_socket_inodes()
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        num_peers = NUM_RANKS // 2 if os.environ["HCCL_TRANSPORT"] == "auto" else NUM_RANKS - 1
        resets = Resets(comm, before, num_peers, which, seed=rank)
        comm.barrier()  # then peers may open lanes that they need
        check_round(comm, 0)
        if when == "idle":
            comm.barrier()
            resets.strike()
            time.sleep(0.3)
        else:
            thread = threading.Timer(0.02 * (1 + rank), resets.strike)
            thread.start()
        for number in range(1, 8):
            check_round(comm, number)
        if when != "idle":
            thread.join()
            check_round(comm, 8)
    return resets.num


def run_resets(which: str, when: str, transport: str) -> None:
    env = on_nodes(2, NUM_RANKS)
    counts = run_ranks(
        *(is_reset_once, NUM_RANKS, which, when),
        env=lambda rank: {**env(rank), "HCCL_TRANSPORT": transport},
    )
    assert which == "coordinator" or any(counts)


@pytest.mark.parametrize("transport", ["auto", *by_night("faults", "tcp", "zmq", "verbs_over_tcp")])
def test_reset_of_all_connections_between_living_ranks_is_survived(transport: str) -> None:
    run_resets("all", "idle", transport)


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("when", ["idle", "busy"])
@pytest.mark.parametrize("which", SUBSETS)
def test_reset_of_some_connections_is_survived(which: str, when: str, transport: str) -> None:
    run_resets(which, when, transport)


def is_reset_for_a_minute(rank: int, world_size: int, which: str) -> int:
    before = open_socket_inodes()
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        num_peers = NUM_RANKS // 2 if os.environ["HCCL_TRANSPORT"] == "auto" else NUM_RANKS - 1
        resets = Resets(comm, before, num_peers, which, seed=rank)
        comm.barrier()  # then peers may open lanes that they need
        check_round(comm, 0)
        thread = resets.storm(STORM_S)
        number, goes_on = 0, np.ones(1, np.int64)
        while goes_on[0]:
            number += 1
            check_round(comm, number)
            goes_on[0] = thread.is_alive()
            comm.broadcast(goes_on, root=0)
        thread.join()
        check_round(comm, number + 1)
    return resets.num


@pytest.mark.nightly("faults")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("which", ["all", "half"])
def test_resets_for_a_minute_are_survived(which: str, transport: str) -> None:
    env = on_nodes(2, NUM_RANKS)
    counts = run_ranks(
        *(is_reset_for_a_minute, NUM_RANKS, which),
        timeout_s=180,
        env=lambda rank: {**env(rank), "HCCL_TRANSPORT": transport},
    )
    assert sum(counts) > 100


def joins_in_a_storm(rank: int, world_size: int, gap_s: float, seed: int) -> int:
    """Reset any connection, that with torch's store too, as long as ranks join and longer."""
    mesh.require_system_calls = lambda: None  # type: ignore[attr-defined]  # by connections of its own
    before, num_resets, ends = open_socket_inodes(), 0, threading.Event()
    chance = random.Random(seed + rank)

    def strikes() -> None:
        nonlocal num_resets
        while not ends.wait(chance.uniform(0, gap_s)):
            for descriptor in tcp_connections(before):
                if chance.random() < 0.3:
                    reset(descriptor)
                    num_resets += 1

    thread = threading.Thread(target=strikes)
    thread.start()
    calm = threading.Timer(START_STORM_S, ends.set)  # in the midst of the start, or after it
    calm.start()
    try:
        with Communicator(timeout_s=TIMEOUT_S) as comm:
            thread.join()
            check_round(comm, 0)
    finally:
        calm.cancel()
        ends.set()
    return num_resets


def tcp_connections(before: set[int]) -> Iterator[int]:
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            inode = socket_inode(descriptor)
            if inode is not None and inode not in before and _is_tcp(descriptor):
                with socket.socket(fileno=os.dup(descriptor)) as copy:
                    copy.getpeername()  # OSError: it listens
                yield descriptor


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("gap_s", [0.003, 0.03])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_resets_while_ranks_join_are_survived(transport: str, gap_s: float, seed: int) -> None:
    env = on_nodes(2, NUM_RANKS)
    counts = run_ranks(
        *(joins_in_a_storm, NUM_RANKS, gap_s, 100 * seed),
        env=lambda rank: {**env(rank), "HCCL_TRANSPORT": transport},
    )
    assert all(counts)


def leaves_after_a_reset(rank: int, world_size: int, leaver: int) -> list[int]:
    before, got = open_socket_inodes(), np.zeros(SMALL, np.int64)
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        check_round(comm, 0)
        if rank == leaver:
            Resets(comm, before, world_size - 1, "all", seed=0).strike()
            comm.send(np.arange(SMALL), 1 - leaver)
        else:
            comm.recv(got, leaver)
    return got.tolist()


@pytest.mark.parametrize("transport", ["tcp", "zmq", *by_night("faults", "verbs_over_tcp")])
@pytest.mark.parametrize("leaver", [0, 1])
def test_rank_that_leaves_after_a_reset_is_heard_to_its_end(leaver: int, transport: str) -> None:
    env = on_nodes(2, 2)
    results = run_ranks(
        *(leaves_after_a_reset, 2, leaver),
        env=lambda rank: {**env(rank), "HCCL_TRANSPORT": transport},
    )
    assert results[1 - leaver] == list(range(SMALL))


def goes_on_for(rank: int, world_size: int, seconds: float) -> int:
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        number, goes_on, until_s = 0, np.ones(1, np.int64), time.monotonic() + seconds
        while goes_on[0]:
            number += 1
            check_round(comm, number)
            goes_on[0] = time.monotonic() < until_s
            comm.broadcast(goes_on, root=0)
    return number


@pytest.mark.nightly("hosts")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_firewall_that_resets_and_refuses_for_a_while_is_survived(transport: str) -> None:
    """As if both hosts' processes had ended: nobody answers, and all that is sent is reset."""
    with Hosts() as hosts, ThreadPoolExecutor(1) as pool:
        env = {"HCCL_TRANSPORT": transport}
        job = pool.submit(run_ranks, goes_on_for, NUM_RANKS, 12.0, env=env, hosts=hosts)
        time.sleep(6)  # the moment is not important, and the job does not say when it works
        firewall(hosts, 0, "tcp dport 1-65535 reject with tcp reset")
        time.sleep(4)
        done = subprocess.run(hosts.command(0, "nft", "flush ruleset"), timeout=20)
        assert done.returncode == 0
        assert min(job.result()) > 1
