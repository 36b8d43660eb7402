"""One call whose tensors lie on an accelerator: fetched, communicated and stored tile by tile.

Three steps overlap: the device copies tile i + 1 to the host, the engine communicates tile i, and
the device copies the results of tile i - 1 back. The copies run on two streams of the group. The
first stream waits for the work that the caller's stream had when the call was made. Waiting for the
Work makes the current stream wait for the end of the second one. A host thread waits for the device
only until the tile that it sends next has been copied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.communicator import Communicator
from hccl_py.torch_backend.arguments import Call, write_back
from hccl_py.torch_backend.staging.pool import POOL
from hccl_py.torch_backend.staging.tiles import (
    Data,
    arguments_of,
    flat_blocks,
    num_tiles,
    tiles_of,
)
from hccl_py.transport.errors import CollectiveTimeoutError
from hccl_py.work import Work


class Streams(NamedTuple):
    """The streams of one group on one device.

    Attributes:
        fetch: copies to the host.
        store: copies from it.
    """

    fetch: torch.Stream
    store: torch.Stream


class _Tile(NamedTuple):
    values: tuple[Any, ...]
    fetched: torch.Event | None
    """None: nothing is read."""
    stores: list[tuple[Tensor, Tensor]]


class StagedCall:
    """The communicator's calls that one call of torch makes, and their copies.

    It has the methods of the communicator's Work: `wait`, `done`, `exception`.

    Attributes:
        source: the rank that a receive took its data from.
        streams: `order_current_stream` waits for its `store`.
    """

    def __init__(
        self,
        call: Call,
        streams: Streams,
        method: str,
        calls: Sequence[tuple[Any, ...]],
        group: tuple[int, int, float | None],
    ) -> None:
        """Start to copy to the host what the current stream has computed by then.

        Args:
            call: its results are on the device of `streams`, or on the host.
            streams: of the group.
            method: of the communicator.
            calls: its arguments, one tuple per call.
            group: rank, world size and the timeout of the call.
        """
        assert call.device is not None
        self.streams = streams
        self.source: int | None = None
        self._device = call.device
        self._call = call
        self._method = method
        self._rank, self._world_size, self._timeout_s = group
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._stored: torch.Event | None = None
        self._started: SimpleQueue[Work | BaseException] = SimpleQueue()
        self._buffers: list[Tensor] = []
        self._ready = torch.accelerator.current_stream(self._device).record_event()
        streams.fetch.wait_event(self._ready)
        try:
            with torch.inference_mode(), streams.fetch:
                self._tiles = [tile for values in calls for tile in self._cut(values)]
        except RuntimeError as error:  # torch has no narrower one
            raise self._failed_copy("to", error) from error

    def _cut(self, values: Sequence[Any]) -> list[_Tile]:
        tiles = num_tiles(self._method, values, self._world_size)
        cut = [list(values) for _ in range(tiles)]
        fetches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(tiles)]
        stores: list[list[tuple[Tensor, Tensor]]] = [[] for _ in range(tiles)]
        for argument in arguments_of(self._method, values, self._rank):
            data = values[argument.position]
            whole = self._on_host(data)
            num_blocks = self._world_size if argument.by_rank and tiles > 1 else 1
            there = tiles_of(flat_blocks(data, num_blocks), tiles)
            here = tiles_of(flat_blocks(whole, num_blocks), tiles)
            for tile in range(tiles):
                pieces: Data = here[tile] if argument.by_rank else here[tile][0]
                cut[tile][argument.position] = whole if tiles == 1 else pieces
                pairs = zip(there[tile], here[tile], strict=True)
                moving = [pair for pair in pairs if pair[0].numel() and not pair[0].is_cpu]
                fetches[tile] += moving if argument.reads else []
                stores[tile] += moving if argument.writes else []
        return [
            _Tile(tuple(arguments), self._fetch(fetch), store)
            for arguments, fetch, store in zip(cut, fetches, stores, strict=True)
        ]

    def _fetch(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> torch.Event | None:
        for there, here in pairs:
            here.copy_(there, non_blocking=True)
            # Torch must not reuse the memory before the copy, even if the caller drops the tensor.
            there.record_stream(self.streams.fetch)
        return self._record(self.streams.fetch) if pairs else None

    def _on_host(self, data: Data) -> Data:
        if not isinstance(data, Tensor):
            return [self._host_of(block) for block in data]
        return self._host_of(data)

    def _host_of(self, tensor: Tensor) -> Tensor:
        if tensor.is_cpu:
            return tensor
        buffer = POOL.take(tensor.nbytes)
        self._buffers.append(buffer)
        return buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def _record(self, stream: torch.Stream) -> torch.Event:
        # A blocking event: a spinning thread would take a core from the engine.
        event = torch.Event(self._device, blocking=True)
        event.record(stream)
        return event

    # ------------------------------------------------------------ the steps

    def run(self, communicator: Communicator) -> None:
        """Run all of it on the calling thread; `exception` returns the error that it raises."""
        try:
            start = getattr(communicator.nonblocking, self._method)
            before: tuple[_Tile, Work] | None = None
            for tile in self._tiles:
                work = self._start(start, tile)
                if before is not None:
                    self._store(*before)
                before = tile, work
            if before is not None:
                self._store(*before)
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def issue(self, communicator: Communicator) -> None:
        """Start every tile as soon as the device has copied it; waits for nothing else."""
        try:
            start = getattr(communicator.nonblocking, self._method)
            for tile in self._tiles:
                self._started.put(self._start(start, tile))
        except Exception as error:  # raised again by `wait`
            self._started.put(error)

    def land(self) -> None:
        """Store the results on the device, tile after tile, as `issue` starts them."""
        try:
            for tile in self._tiles:
                work = self._started.get()
                if isinstance(work, BaseException):
                    raise work
                self._store(tile, work)
        except Exception as error:  # raised again by `wait`
            self._end(error)
        else:
            self._end(None)

    def _start(self, start: Any, tile: _Tile) -> Work:
        if tile.fetched is not None:
            try:
                tile.fetched.synchronize()
            except RuntimeError as error:
                raise self._failed_copy("to", error) from error
        work: Work = start(*tile.values, timeout_s=self._timeout_s)
        return work

    def _store(self, tile: _Tile, work: Work) -> None:
        work.wait()
        self.source = work.source
        if not tile.stores:
            return
        store = self.streams.store
        try:
            with torch.inference_mode(), store:
                # The caller's stream may still read the old contents.
                store.wait_event(self._ready)
                for there, here in tile.stores:
                    there.copy_(here, non_blocking=True)
                    there.record_stream(store)
        except RuntimeError as error:
            raise self._failed_copy("from", error) from error

    def _end(self, error: BaseException | None) -> None:
        """Record the end for streams and threads, and release all tensors."""
        if error is None:
            try:
                self._finish_stores()
            except RuntimeError as problem:
                error = self._failed_copy("from", problem)
                error.__cause__ = problem
        self._error = error
        if error is None:
            for buffer in self._buffers:
                POOL.give(buffer, self._stored)
        # After an error the engine may still use the buffers, so they do not go back to the pool.
        self._buffers, self._tiles = [], []
        self._call = Call(self._call.name)
        self._ended.set()

    def _finish_stores(self) -> None:
        store = self.streams.store
        with store:
            write_back(self._call.copies)
            for tensors in self._call.copies:
                for tensor in tensors:
                    if not tensor.is_cpu:
                        tensor.record_stream(store)
        self._stored = self._record(store)

    def _failed_copy(self, direction: str, error: RuntimeError) -> Exception:
        return dist.DistBackendError(
            f"{self._call.name}: copying its tensors {direction} {self._device} through pinned "
            f"host memory failed: {error}"
        )

    # ------------------------------------------------------------ waiting for it

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until the device has the order to store all of it."""
        if not self._ended.wait(timeout_s):
            raise CollectiveTimeoutError(
                f"Timed out after {timeout_s:g} s of waiting for {self._call.name} on "
                f"{self._device}; the call itself goes on"
            )
        if self._error is not None:
            raise self._error

    def order_current_stream(self) -> None:
        """Make this thread's current stream wait for the results."""
        if self._stored is not None:
            torch.accelerator.current_stream(self._device).wait_event(self._stored)

    def store_stream(self) -> torch.Stream:
        """Return the stream on which the results arrive."""
        return self.streams.store

    def done(self) -> bool:
        """Return whether it has failed, or the results are in place."""
        if not self._ended.is_set():
            return False
        return self._stored is None or self._stored.query()

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or if it went well."""
        return self._error if self._ended.is_set() else None
