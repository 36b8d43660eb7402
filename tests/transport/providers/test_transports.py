"""Each value of HCCL_TRANSPORT that keeps ranks from sharing memory; numbers: `test_matrix.py`.

The whole suite runs over a transport with

    HCCL_TRANSPORT=zmq pytest tests/communicator tests/torch_backend
"""

import os
import signal

import numpy as np
import pytest
from ranks import run_ranks
from stores import MemoryStore

from hccl_py import Communicator, InvalidArgumentError, PeerLostError
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.providers.verbs import library
from hccl_py.transport.providers.verbs.devices import list_ports


def one_dies(rank: int, world_size: int) -> None:
    comm = Communicator()
    if rank == 1:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    # Its last message may die with it, in the queue of ZeroMQ's thread: then the barrier tells.
    with pytest.raises(PeerLostError) as caught:
        comm.barrier()
        for _ in range(1000):
            comm.all_reduce(np.ones(100_000))
    assert caught.value.rank == 1


@pytest.mark.parametrize("transport", ["verbs_over_tcp", "zmq"])
def test_killed_rank_is_named(transport: str) -> None:
    run_ranks(one_dies, 3, env={"HCCL_TRANSPORT": transport}, victims=[1])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "pigeon",
            "HCCL_TRANSPORT=pigeon: expected one of auto, tcp, verbs, verbs_over_tcp, zmq, or "
            "module:Class",
        ),
        ("no_such_module:Provider", "No module named 'no_such_module'"),
        ("zmq:Pigeon", "has no attribute 'Pigeon'"),
    ],
)
def test_unknown_transport_lists_those_there_are(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", value)
    with pytest.raises(InvalidArgumentError, match=message):
        Communicator(MemoryStore(), 1, 2)


@pytest.mark.skipif(bool(list_ports()), reason="this host has an RDMA device")
@pytest.mark.parametrize("has_library", [True, False])
def test_verbs_without_device_or_library_says_how_to_get_them(
    has_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first one is a library that every Linux has.
    file = "libc.so.6" if has_library else "libibverbs-that-is-missing.so.1"
    monkeypatch.setattr(library, "_FILE", file)
    monkeypatch.setenv("HCCL_TRANSPORT", "verbs")
    with pytest.raises(BootstrapError) as caught:
        Communicator(MemoryStore(), 1, 2)
    said = str(caught.value)
    assert "HCCL_TRANSPORT=verbs: " in said
    assert "this host has no RDMA device" in said and "modprobe rdma_rxe" in said
    assert ("apt install ibverbs-providers" in said) is not has_library
