"""What staging does where there is no device: cutting calls into tiles, and the pool's bounds."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions

from hccl_py.calls.communicator_state import UNISSUED
from hccl_py.torch_backend.checks.arguments import Backends, Call
from hccl_py.torch_backend.staging.pool import PinnedPool
from hccl_py.torch_backend.staging.tiles import (
    MAX_TILES,
    TILE_BYTES,
    arguments_of,
    num_tiles,
    pieces_of,
)
from hccl_py.torch_backend.submit import CallingGroup

TILE = TILE_BYTES // 4
"""In elements of float32."""


def memory(count: int) -> Tensor:
    """A tensor of any size that takes no memory to speak of."""
    return torch.empty(count, device="meta")


def calls(n: int, rank: int, count: int) -> dict[str, tuple[Any, ...]]:
    """Arguments of equal-block calls as a rank passes them."""
    block, blocks = memory(count), memory(n * count)
    return {
        "all_reduce": (block, 0),
        "broadcast": (block, 1),
        "reduce": (block, 1, 0),
        "all_gather": (blocks, block),
        "reduce_scatter": (block, blocks, 0),
        "all_to_all": (blocks, blocks),
        "gather": ([block] * n if rank == 1 else None, block, 1),
        "scatter": (block, [block] * n if rank == 1 else None, 1),
        "send": (block, 1, 0),
        "recv": (block, 1, 0),
        "barrier": (),
    }


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, TILE // 8, TILE, TILE + 1, 5 * TILE, 1000 * TILE])
def test_ranks_cut_alike_and_into_nothing_empty(n: int, count: int) -> None:
    everyone = [calls(n, rank, count) for rank in range(n)]
    for method in everyone[0]:
        found = {num_tiles(method, calls[method], n) for calls in everyone}
        assert len(found) == 1, method
        tiles = found.pop()
        assert 1 <= tiles <= max(1, min(MAX_TILES, count))
        for argument in arguments_of(method, everyone[1][method], 1):
            data = everyone[1][method][argument.position]
            cut = pieces_of(data, n if argument.by_rank and tiles > 1 else 1, tiles)
            assert len(cut) == tiles
            sizes = [piece.numel() for tile in cut for piece in tile]
            assert max(sizes) - min(sizes) <= 1 or tiles == 1
            assert all(sizes) or not count


def test_only_what_this_rank_reads_or_writes_is_copied() -> None:
    block = memory(3)

    def seen(method: str, values: tuple[Any, ...], rank: int) -> list[tuple[bool, bool]]:
        return [(each.reads, each.writes) for each in arguments_of(method, values, rank)]

    assert seen("broadcast", (block, 0), 0) == [(True, False)]
    assert seen("broadcast", (block, 0), 1) == [(False, True)]
    assert seen("reduce", (block, 0, 0), 0) == [(True, True)]
    assert seen("reduce", (block, 0, 0), 1) == [(True, False)]
    assert seen("gather", (None, block, 0), 1) == [(True, False)]
    assert seen("scatter", (block, None, 0), 1) == [(False, True)]


class Copy:
    """An event of a device: happens when the test says so."""

    def __init__(self) -> None:
        self.happened = False
        self.waited_for = 0

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.waited_for += 1


def test_a_buffer_serves_again_once_the_device_is_done_with_it() -> None:
    pool = PinnedPool(1 << 20, pinned=False)
    copy: Any = Copy()
    first = pool.take(10_000)
    pool.give(first, copy)
    second = pool.take(10_000)
    assert second.data_ptr() != first.data_ptr()
    copy.happened = True
    assert pool.take(9_999).data_ptr() == first.data_ptr()
    pool.give(second, None)
    assert pool.take(10_000).data_ptr() == second.data_ptr()


def test_what_is_kept_idle_is_bounded() -> None:
    pool = PinnedPool(100_000, pinned=False)
    buffers = [pool.take(size) for size in (30_000, 40_000, 60_000, 20_000)]
    copies: list[Any] = [Copy() for _ in buffers]
    for buffer, copy in zip(buffers, copies, strict=True):
        pool.give(buffer, copy)
        assert pool.idle_bytes <= 100_000
    # The third had no room; the device was still writing from it, so it was waited for.
    assert [copy.waited_for for copy in copies] == [0, 0, 1, 0]
    copies[0].happened = True
    before = pool.idle_bytes
    assert pool.take(30_000).data_ptr() == buffers[0].data_ptr()
    assert pool.idle_bytes == before - buffers[0].numel()


class HeldCall:
    """A staged call whose tensors reach the host when the test says so."""

    def __init__(self, communicator: Any) -> None:
        self.fetched, self.landed = threading.Event(), threading.Event()
        self._communicator = communicator

    def issue(self) -> None:
        assert self.fetched.wait(10)
        self._communicator.issued.append(self)

    def land(self) -> None:
        self.landed.set()

    def done(self) -> bool:
        return self.landed.is_set()


class Recorder:
    """A communicator that remembers what was issued."""

    def __init__(self) -> None:
        self.issued: list[HeldCall] = []
        self.nonblocking = self
        self.entry = object()
        self.name, self.rank, self.world_size = "recorder", 0, 2
        self._state = SimpleNamespace(calls=SimpleNamespace(engine=None))


class GroupOfTorch(CallingGroup, dist.ProcessGroup):  # type: ignore[misc]
    """What submits calls is one half of a group."""


def test_later_calls_wait_until_staged_calls_are_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder: Any = Recorder()
    group = GroupOfTorch(recorder)
    group.backends = Backends("cpu:hccl")
    held = [HeldCall(recorder), HeldCall(recorder)]
    pending = iter(held)
    monkeypatch.setattr(CallingGroup, "_staged", lambda self, *arguments: next(pending))
    assert group.entry is not None
    for _ in held:
        call = Call("allreduce", AllreduceOptions(), 2, Backends())
        call.device = torch.device("meta")
        group.submit(call, "all_reduce", (torch.ones(1),))
    assert group.entry is None
    assert recorder in UNISSUED  # a graph's replay waits too
    drained = threading.Thread(target=group.drain)
    drained.start()
    held[0].fetched.set()
    drained.join(0.1)
    assert drained.is_alive()
    held[1].fetched.set()
    drained.join(10)
    assert not drained.is_alive()
    assert recorder.issued == held
    assert group.entry is not None
    assert recorder not in UNISSUED
    group.drain()
