"""Windows between processes: they put into each other, and ends, signals and forks are told."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from namespaces import Hosts
from quiet_clock import HANG_S
from ranks import run_ranks

import hccl_py
from hccl_py import AbortedError, Communicator, PeerLostError

LONG = 300_007
"""Elements of a message in many parts."""


def wait_for_the_dead(rank: int, n: int) -> None:
    comm = Communicator(timeout_s=HANG_S)
    window = comm.window(hccl_py.empty(4))
    if rank == 1:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()
    with pytest.raises(PeerLostError) as caught:
        window.wait_signal(1 if rank == 0 else 0)
    assert caught.value.rank == 1
    with pytest.raises(PeerLostError):
        window.signal(0)
    with pytest.raises(PeerLostError):
        window.put(np.ones(1, np.float32), 0)
    window.close()
    comm.close()


@pytest.mark.parametrize("nodes", ["aaa", "aba"])
def test_wait_for_a_rank_that_dies_names_it(nodes: str) -> None:
    run_ranks(wait_for_the_dead, 3, env=lambda rank: {"HCCL_NODE_ID": nodes[rank]}, victims=[1])


def interrupt_a_wait(rank: int, n: int) -> None:
    with Communicator(timeout_s=HANG_S) as comm:
        window = comm.window(hccl_py.empty(4))
        if rank == 0:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            begin = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                window.wait_signal(1)
            assert time.monotonic() - begin < HANG_S / 2
        else:
            with pytest.raises(AbortedError):
                window.wait_signal(0)


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_ctrl_c_ends_a_wait(nodes: str) -> None:
    run_ranks(interrupt_a_wait, 2, env=lambda rank: {"HCCL_NODE_ID": nodes[rank]})


def put_between_processes(rank: int, n: int) -> None:
    with Communicator(timeout_s=HANG_S) as comm:
        buffer = hccl_py.empty(LONG)
        with comm.window(buffer) as window:
            for step in range(20):
                window.put(np.full(LONG, step * 10 + rank, np.float32), 1 - rank)
                window.signal(1 - rank)
                window.wait_signal(1 - rank)
                assert (buffer == step * 10 + 1 - rank).all()
                comm.barrier()


@pytest.mark.parametrize("nodes", ["aa", "ab"])
def test_processes_put_into_each_other(nodes: str) -> None:
    run_ranks(put_between_processes, 2, env=lambda rank: {"HCCL_NODE_ID": nodes[rank]})


@pytest.mark.nightly("hosts")
@pytest.mark.parametrize("transport", ["tcp", "zmq", "verbs_over_tcp"])
def test_processes_of_two_hosts_put_into_each_other(transport: str) -> None:
    with Hosts() as hosts:
        env = {"HCCL_TRANSPORT": transport}
        run_ranks(put_between_processes, 2, env=env, hosts=hosts)


def put_in_a_child(rank: int, n: int) -> None:
    with Communicator(timeout_s=HANG_S) as comm, comm.window(hccl_py.empty(1)) as window:
        window.buffer[:] = 1
        comm.barrier()
        child = os.fork()
        if child == 0:
            raised = False
            try:
                window.put(np.full(1, 9, np.float32), 1 - rank)
            except AbortedError:
                raised = True
            os._exit(0 if raised else 1)
        assert os.waitpid(child, 0)[1] == 0
        comm.barrier()
        assert window.buffer[0] == 1


def test_forked_child_cannot_put() -> None:
    run_ranks(put_in_a_child, 2)
