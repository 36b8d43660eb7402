"""Calls on an accelerator's tensors: fetched, communicated and stored tile by tile.

Three steps overlap: the device copies tile i + 1 to the host, the engine communicates tile i, and
the device copies the results of tile i - 1 back. The copies run on two streams of the group. The
first stream waits for the work of the caller's stream at the time of the call. Waiting for the Work
makes the current stream wait for the end of the second one.

A host thread waits for the device only until its next tile has been copied; meanwhile the caller
queues work for the device. All ranks must issue the calls of a group in one order, so a later call
waits until the earlier ones are issued. That depends on this rank's device only.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.calls.work import Work
from hccl_py.torch_backend.checks.arguments import Call, write_back
from hccl_py.torch_backend.staging.pool import POOL
from hccl_py.torch_backend.staging.tiles import arguments_of, num_tiles, pieces_of
from hccl_py.transport.errors import CollectiveTimeoutError
from hccl_py.transport.threads import is_of_signal_handler

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator


class Streams(NamedTuple):
    """The streams of one group on one device: `fetch` copies to the host, `store` from it."""

    fetch: torch.Stream
    store: torch.Stream


@dataclass
class _Tile:
    """A part of a call: its arguments, and the pairs of tensors (on the device, on the host)."""

    values: list[Any]
    fetches: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    stores: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    fetched: torch.Event | None = None


class StagedCall:
    """The communicator's calls for one call of torch, and their copies.

    It has the methods of the communicator's Work: `wait`, `done`, `exception`, and its `source`.
    """

    def __init__(
        self,
        communicator: Communicator,
        streams: Streams,
        call: Call,
        method: str,
        calls: Sequence[tuple[Any, ...]],
    ) -> None:
        """Start to copy the current stream's results to the host.

        The call is `method` of the communicator, once per argument tuple of `calls`.
        """
        assert call.device is not None
        self.device = call.device
        self.streams = streams
        self.source: int | None = None
        self._communicator = communicator
        self._method = method
        self._name, self._copies, self._timeout_s = call.name, call.copies, call.timeout_s()
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._stored: torch.Event | None = None
        self._started: SimpleQueue[Work | BaseException] = SimpleQueue()
        self._buffers: list[Tensor] = []
        self._ready = torch.accelerator.current_stream(self.device).record_event()
        streams.fetch.wait_event(self._ready)
        with self._copying("to"), torch.inference_mode(), streams.fetch:
            self._tiles = [tile for values in calls for tile in self._cut(values)]
            for tile in self._tiles:
                self._fetch(tile)

    def _cut(self, values: Sequence[Any]) -> list[_Tile]:
        rank, world_size = self._communicator.rank, self._communicator.world_size
        count = num_tiles(self._method, values, world_size)
        tiles = [_Tile(list(values)) for _ in range(count)]
        for position, reads, writes, by_rank in arguments_of(self._method, values, rank):
            data = values[position]
            many = not isinstance(data, Tensor)
            whole = [self._on_host(one) for one in data] if many else self._on_host(data)
            num_blocks = world_size if by_rank and count > 1 else 1
            cut = pieces_of(data, num_blocks, count), pieces_of(whole, num_blocks, count)
            for tile, there, here in zip(tiles, *cut, strict=True):
                pieces = here if by_rank else here[0]
                tile.values[position] = whole if count == 1 else pieces
                pairs = zip(there, here, strict=True)
                moving = [pair for pair in pairs if pair[0].numel() and not pair[0].is_cpu]
                tile.fetches += moving if reads else []
                tile.stores += moving if writes else []
        return tiles

    def _fetch(self, tile: _Tile) -> None:
        for there, here in tile.fetches:
            here.copy_(there, non_blocking=True)
            # Torch must not reuse the memory before the copy, even if the caller drops the tensor.
            there.record_stream(self.streams.fetch)
        if tile.fetches:
            tile.fetched = self._record(self.streams.fetch)

    def _on_host(self, tensor: Tensor) -> Tensor:
        if tensor.is_cpu:
            return tensor
        buffer = POOL.take(tensor.nbytes)
        self._buffers.append(buffer)
        return buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def _record(self, stream: torch.Stream) -> torch.Event:
        # A blocking event: a spinning thread would take a core from the engine.
        event = torch.Event(self.device, blocking=True)
        event.record(stream)
        return event

    @contextlib.contextmanager
    def _copying(self, direction: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch has no narrower type
            if is_of_signal_handler(error):
                raise
            raise dist.DistBackendError(
                f"{self._name}: copying its tensors {direction} {self.device} through pinned "
                f"host memory failed: {error}"
            ) from error

    def issue(self) -> None:
        """Start every tile as soon as the device has copied it."""
        try:
            for tile in self._tiles:
                self._started.put(self._start(tile))
        except Exception as error:  # raised again by `wait`
            self._started.put(error)

    def land(self) -> None:
        """Store the results on the device tile by tile; release all tensors."""
        try:
            for tile in self._tiles:
                work = self._started.get()
                if isinstance(work, BaseException):
                    raise work
                self._store(tile, work)
            self._finish_stores()
        except Exception as error:  # raised again by `wait`
            self._error = error
        else:
            for buffer in self._buffers:
                POOL.give(buffer, self._stored)
        # After an error the engine may still use the buffers, so they do not return to the pool.
        self._buffers, self._tiles, self._copies = [], [], []
        self._ended.set()

    def _start(self, tile: _Tile) -> Work:
        if tile.fetched is not None:
            with self._copying("to"):
                tile.fetched.synchronize()
        start = getattr(self._communicator.nonblocking, self._method)
        work: Work = start(*tile.values, timeout_s=self._timeout_s)
        return work

    def _store(self, tile: _Tile, work: Work) -> None:
        work.wait()
        self.source = work.source
        if not tile.stores:
            return
        store = self.streams.store
        with self._copying("from"), torch.inference_mode(), store:
            # The caller's stream may still read the old contents.
            store.wait_event(self._ready)
            for there, here in tile.stores:
                there.copy_(here, non_blocking=True)
                there.record_stream(store)

    def _finish_stores(self) -> None:
        store = self.streams.store
        with self._copying("from"), store:
            write_back(self._copies)
            for tensors in self._copies:
                for tensor in tensors:
                    if not tensor.is_cpu:
                        tensor.record_stream(store)
            self._stored = self._record(store)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until all copies to the device are queued."""
        if not self._ended.wait(timeout_s):
            raise CollectiveTimeoutError(
                f"Timed out after {timeout_s:g} s of waiting for {self._name} on "
                f"{self.device}; the call itself continues"
            )
        if self._error is not None:
            raise self._error

    def order_current_stream(self) -> None:
        """Make this thread's current stream wait for the results."""
        if self._stored is not None:
            torch.accelerator.current_stream(self.device).wait_event(self._stored)

    def done(self) -> bool:
        """Return whether it has failed, or the results are stored."""
        if not self._ended.is_set():
            return False
        return self._stored is None or self._stored.query()

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or if it succeeded."""
        return self._error if self._ended.is_set() else None
