"""What staging does where there is no device: cutting calls into tiles, and the pool's bounds."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from hccl_py.torch_backend.arguments import Call
from hccl_py.torch_backend.staging.group import Staging
from hccl_py.torch_backend.staging.pool import PinnedPool
from hccl_py.torch_backend.staging.tiles import (
    MAX_TILES,
    TILE_BYTES,
    arguments_of,
    flat_blocks,
    num_tiles,
    parts,
    tiles_of,
)
from hccl_py.torch_backend.state import GroupState

TILE = TILE_BYTES // 4
"""In elements of float32."""


def memory(count: int) -> Tensor:
    """A tensor of any size that takes no memory to speak of."""
    return torch.empty(count, device="meta")


@pytest.mark.parametrize("count", [0, 1, 5, 16, 17, 1000])
@pytest.mark.parametrize("tiles", [1, 2, 3, 16])
def test_parts_follow_each_other_and_differ_by_one_at_most(count: int, tiles: int) -> None:
    cut = parts(count, tiles)
    assert len(cut) == tiles
    assert cut[0][0] == 0 and cut[-1][1] == count
    assert all(end == begin for (_, end), (begin, _) in zip(cut, cut[1:], strict=False))
    assert max(end - begin for begin, end in cut) - min(end - begin for begin, end in cut) <= 1


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
            blocks = flat_blocks(data, n if argument.by_rank and tiles > 1 else 1)
            assert all(
                piece.numel() or not count for tile in tiles_of(blocks, tiles) for piece in tile
            )


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

    def __init__(self) -> None:
        self.fetched, self.landed = threading.Event(), threading.Event()

    def issue(self, communicator: Any) -> None:
        assert self.fetched.wait(10)
        communicator.issued.append(self)

    def land(self) -> None:
        self.landed.set()

    def done(self) -> bool:
        return self.landed.is_set()


class Recorder:
    """A communicator that remembers what was issued."""

    def __init__(self) -> None:
        self.issued: list[HeldCall] = []

    def __getattr__(self, name: str) -> Any:
        return self


def test_later_calls_wait_until_staged_calls_are_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder: Any = Recorder()
    state = GroupState(recorder, 0, 2)
    state.set_backends("cpu:hccl")
    held = [HeldCall(), HeldCall()]
    pending = iter(held)
    monkeypatch.setattr(Staging, "_staged", lambda self, *arguments: next(pending))
    staging = Staging(state)
    assert state.fast
    for _ in held:
        call = Call("allreduce")
        call.device = torch.device("meta")
        staging.start(call, "all_reduce", [()], None, None)
    assert not state.fast
    drained = threading.Thread(target=staging.drain)
    drained.start()
    held[0].fetched.set()
    drained.join(0.1)
    assert drained.is_alive()
    held[1].fetched.set()
    drained.join(10)
    assert not drained.is_alive()
    assert recorder.issued == held
    assert state.fast
    staging.drain()
