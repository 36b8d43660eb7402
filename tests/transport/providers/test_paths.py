"""Several links between two hosts: they add up, one can go and come back, all can go.

The hosts are network namespaces, their links veth pairs; what a rank of the tests cuts or limits is
the kernel's own. Times are compared only where the difference is the behaviour under test.
"""

import contextlib
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from namespaces import TWO_HOSTS, Hosts
from network_resets import open_sockets
from ranks import run_ranks

from hccl_py import Communicator, ReduceOp

pytestmark = TWO_HOSTS

TIMEOUT_S = 20.0
LARGE = 2 << 20  # elements: 8 MB of float32
ALL_LINKS = {"HCCL_SOCKET_IFNAME": "link"}


def sent(comm: Communicator) -> Counter[str]:
    """Return the bytes sent so far over each interface."""
    total: Counter[str] = Counter()
    for path in comm.statistics()["paths"]:
        total[path["path"].split()[0]] += path["bytes"]
    return total


def check_sum(comm: Communicator, count: int) -> None:
    """Run one all_reduce and compare every element."""
    array = np.arange(count, dtype=np.float32) % 1000 + comm.rank
    comm.all_reduce(array)
    assert_sum(array, comm.world_size)


def assert_sum(array: np.ndarray[Any, np.dtype[np.float32]], world_size: int) -> None:
    ranks = world_size * (world_size - 1) // 2
    expected = np.arange(array.size, dtype=np.float32) % 1000 * world_size + ranks
    np.testing.assert_array_equal(array, expected)


def agree_until(comm: Communicator, condition: Callable[[], bool], what: str) -> None:
    """Make calls on all ranks, until the condition holds on every one."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        flags = np.array([condition(), time.monotonic() < deadline_s], np.int32)
        comm.all_reduce(flags, ReduceOp.MIN)
        if flags[0]:
            return
        assert flags[1], f"waited {TIMEOUT_S} s in vain: {what}"
        time.sleep(0.01)


def connected(comm: Communicator, interface: str) -> set[bool]:
    """Say of all lanes in use, after some traffic, whether their path over an interface stands."""
    check_sum(comm, LARGE // 16)
    paths = comm.statistics()["paths"]
    made = [path for path in paths if path["connected"] is not None]
    return {bool(path["connected"]) for path in made if path["path"].startswith(interface)}


def one_link_goes_and_returns(rank: int, world_size: int, hosts: Hosts) -> None:
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        for count in (0, 1, 77_777, LARGE):
            check_sum(comm, count)
        assert min(sent(comm)["link0"], sent(comm)["link1"]) > 0
        array = np.arange(LARGE, dtype=np.float32) % 1000 + rank
        work = comm.nonblocking.all_reduce(array)
        if rank == 0:
            hosts.cut(1)
        work.wait()
        assert_sum(array, world_size)
        # A lane that had nothing on its way there may notice later, or never.
        agree_until(comm, lambda: False in connected(comm, "link1"), "all notice the cut")
        before = sent(comm)
        check_sum(comm, LARGE)
        assert sent(comm)["link0"] > before["link0"]
        if rank == 0:
            hosts.restore(1)
        agree_until(comm, lambda: connected(comm, "link1") == {True}, "the path returns")
        before = sent(comm)
        agree_until(comm, lambda: carries(comm, "link1", before["link1"]), "it is used again")
        assert any(path["reconnects"] for path in comm.statistics()["paths"])


def carries(comm: Communicator, interface: str, before: int) -> bool:
    check_sum(comm, LARGE // 8)
    return sent(comm)[interface] > before


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_paths_link_cut_in_the_middle_is_replaced_and_returns(ipv6: bool) -> None:
    with Hosts(num_links=2, ipv6=ipv6) as hosts:
        run_ranks(one_link_goes_and_returns, 2, hosts, hosts=hosts, env=ALL_LINKS)


def all_links_go(rank: int, world_size: int, hosts: Hosts) -> tuple[str, float]:
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        check_sum(comm, LARGE)
        comm.timeout_s = 2.0
        comm.barrier()
        if rank == 0:
            hosts.cut(0)
            hosts.cut(1)
        began_s = time.monotonic()
        with pytest.raises(Exception) as caught:
            for _ in range(1000):
                check_sum(comm, LARGE)
        return str(caught.value), time.monotonic() - began_s


def test_paths_all_links_cut_is_an_error_in_time_that_names_them() -> None:
    with Hosts(num_links=2) as hosts:
        outcomes = run_ranks(all_links_go, 2, hosts, hosts=hosts, env=ALL_LINKS)
    for message, elapsed_s in outcomes:
        assert "link0 10.77.0." in message
        assert "link1 10.77.1." in message
        assert elapsed_s < 8.0


def reset_every_third_connection() -> int:
    """End connections with the other host, as a reset does; all of them would look like a death."""
    store_port = int(os.environ["MASTER_PORT"])
    count = 0
    for _, connection in open_sockets():
        with contextlib.suppress(OSError):  # a listener, or gone meanwhile
            if connection.type != socket.SOCK_STREAM or connection.family != socket.AF_INET:
                continue
            if connection.getpeername()[1] == store_port:
                continue
            count += 1
            if count % 3 == 0:
                connection.shutdown(socket.SHUT_RDWR)
    return count // 3


def connections_are_reset(rank: int, world_size: int) -> int:
    with Communicator(timeout_s=TIMEOUT_S) as comm:
        for round_number in range(4):
            array = np.arange(LARGE // 8, dtype=np.float32) % 1000 + rank
            agree_until(comm, lambda: connected(comm, "link0") == {True}, "all stand again")
            work = comm.nonblocking.all_reduce(array)
            if rank == round_number % 2:
                assert reset_every_third_connection() > 0
            work.wait()
            assert_sum(array, world_size)
        return sum(path["reconnects"] for path in comm.statistics()["paths"])


def test_paths_connections_reset_in_the_middle_lose_nothing() -> None:
    with Hosts() as hosts:
        env = {"HCCL_CONNECTIONS": "2"}
        assert min(run_ranks(connections_are_reset, 2, hosts=hosts, env=env)) > 0
