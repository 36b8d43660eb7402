"""Windows of torch's groups: torch's calls, on a group of hccl alone and in a mixed group.

`tests/calls/test_window.py` has the errors and orders of puts and signals themselves.
"""

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from quiet_clock import HANG_S
from ranks import run_ranks
from torch._C import _distributed_c10d as c10d

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED
from hccl_py.transport.errors import InvalidArgumentError

needs_windows = pytest.mark.skipif(not IS_SUPPORTED, reason="this torch has no windows")
MIXED = "cpu:hccl,cuda:gloo"
BACKENDS = ["hccl", pytest.param(MIXED, marks=needs_windows)]
NODES = ["aaa", "aab"]


def window_of(tensor: torch.Tensor | None = None, group: Any = None) -> Any:
    """Make it as a user of torch does; before torch had windows, by the group."""
    if IS_SUPPORTED:
        return dist._new_window(tensor, group)  # type: ignore[attr-defined]
    return (group or dist.group.WORLD).new_window(tensor)


def put_and_signal(rank: int, n: int) -> None:
    peer, source = (rank + 1) % n, (rank - 1) % n
    tensor = torch.zeros(4, 1000)
    window = window_of(tensor)
    data = torch.arange(1000.0) + rank
    for async_op in (False, True):
        works = [
            window.put(data, peer, 1000, async_op),
            window.put(data[:10], peer, 3990, async_op),
            window.signal(peer, async_op),
            window.wait_signal(source, async_op),
        ]
        for work in works:
            work.wait()
            assert work.is_completed()
        assert torch.equal(tensor[1], torch.arange(1000.0) + source)
        assert torch.equal(tensor[3, 990:], torch.arange(10.0) + source)
        assert not tensor[0].any() and not tensor[2].any()
        dist.barrier()
        tensor.zero_()
        dist.barrier()
    window.tensor_deregister()


@pytest.mark.parametrize("nodes", NODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_put_arrives_before_its_signal(backend: str, nodes: str) -> None:
    env = lambda rank: {"HCCL_NODE_ID": nodes[rank]}  # noqa: E731
    run_ranks(put_and_signal, 3, backend=backend, env=env)


def map_and_ask(rank: int, n: int, nodes: str) -> None:
    window = window_of()
    with pytest.raises(InvalidArgumentError, match="tensor_register"):
        window.signal(0, False)
    tensor = torch.full((2, 3), rank, dtype=torch.bfloat16)
    window.tensor_register(tensor)
    with pytest.raises(InvalidArgumentError, match="deregister"):
        window.tensor_register(tensor)
    for peer in range(n):
        is_near = nodes[peer] == nodes[rank]
        if IS_SUPPORTED:
            unified = c10d.WindowAccessType.UNIFIED
            assert (window.get_attr(peer).access_type == unified) == is_near
        if is_near:
            assert window.map_remote_tensor(peer).tolist() == [peer] * 6
        else:
            with pytest.raises(InvalidArgumentError, match="another node"):
                window.map_remote_tensor(peer)
    dist.barrier()
    window.tensor_deregister()
    window.tensor_register(torch.ones(1))  # it may be used again
    window.tensor_deregister()


@pytest.mark.parametrize("nodes", NODES)
def test_view_shows_the_tensor_of_a_rank_of_the_node(nodes: str) -> None:
    env = lambda rank: {"HCCL_NODE_ID": nodes[rank]}  # noqa: E731
    run_ranks(map_and_ask, 3, nodes, backend="hccl", env=env)


def support(rank: int, n: int) -> bool:
    return bool(dist._supports_window())  # type: ignore[attr-defined]


@needs_windows
@pytest.mark.parametrize("backend", ["hccl", MIXED])
def test_torch_learns_that_groups_support_windows(backend: str) -> None:
    assert run_ranks(support, 1, backend=backend) == [True]


def wrong_calls(rank: int, n: int) -> None:
    with pytest.raises(InvalidArgumentError, match="contiguous"):
        window_of(torch.zeros(3, 3)[:, 1])
    window = window_of(torch.zeros(3))
    for call in (
        lambda: window.put(torch.zeros(4), 0, 0, False),
        lambda: window.put(torch.zeros(1), 0, 3, True),
        lambda: window.put(torch.zeros(1), 0, -1, False),
        lambda: window.put(torch.zeros(1), n, 0, False),
        lambda: window.put(torch.zeros(1, dtype=torch.int32), 0, 0, False),
        lambda: window.signal(-1, False),
        lambda: window.wait_signal(n, True),
        lambda: window.map_remote_tensor(n),
    ):
        with pytest.raises(InvalidArgumentError):
            call()
    if IS_SUPPORTED:
        opts = c10d.WaitSignalOptions()
        opts.timeout = timedelta(milliseconds=50)
        with pytest.raises(dist.DistBackendError, match="Timed out") as caught:
            window.wait_signal(0, False, opts)
        assert caught.value.rank == 0
    dist.barrier()
    window.tensor_deregister()


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrong_calls_are_refused(backend: str) -> None:
    run_ranks(wrong_calls, 2, backend=backend)


def wait_for_the_dead(rank: int, n: int) -> None:
    dist.init_process_group("hccl", timeout=timedelta(seconds=HANG_S))
    window = window_of(torch.zeros(3))
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(dist.DistBackendError) as caught:
        window.wait_signal(1, False)
    assert caught.value.rank == 1


def test_wait_for_a_rank_that_dies_names_it() -> None:
    run_ranks(wait_for_the_dead, 2, victims=[1])


def cpp_takes_no_window(rank: int, n: int) -> str:
    with pytest.raises(RuntimeError) as caught:
        c10d.ProcessGroup.new_window.__wrapped__(dist.group.WORLD, torch.zeros(1))
    return str(caught.value)


@needs_windows
def test_torch_still_takes_no_window_from_python() -> None:
    environment = {"HCCL_NATIVE_BACKEND": "1"}
    (said,) = run_ranks(cpp_takes_no_window, 1, backend="hccl", env=environment)
    assert "cast" in said


def torch_asks_the_default_backend(rank: int, n: int) -> bool:
    return bool(dist._supports_window.__wrapped__())  # type: ignore[attr-defined]


@needs_windows
def test_torch_still_asks_the_default_backend_only() -> None:
    assert run_ranks(torch_asks_the_default_backend, 1, backend=MIXED) == [False]
