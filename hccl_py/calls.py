"""Every collective, once: arguments are checked and become addresses, counts and a plan.

How a call then runs, to its end or in the background, is the business of the two subclasses at the
end. Nothing is sent before all arguments of the call were found good.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from hccl_py.buffers import Kind, Span, blocks_of, require_kind, span_of
from hccl_py.call_sites import CallSites
from hccl_py.failures import Narrator
from hccl_py.fingerprint import Transfer
from hccl_py.plans import PlanCache
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import DType, ReduceOp
from hccl_py.work import Work

Buffer = Any
"""A contiguous CPU torch tensor or a C-contiguous numpy array."""
Blocks = Any
"""One Buffer of world_size equal blocks, or a sequence of world_size Buffers of any sizes."""

SpanList = list[tuple[int, int]]
"""Address and count of every block."""

Result = TypeVar("Result", covariant=True)

_BYTE = int(DType.UINT8)
_SUM = int(ReduceOp.SUM)
_AVG = int(ReduceOp.AVG)
_MAX_TAG = (1 << 64) - 1


class Shared:
    """What the blocking and the non-blocking face of a communicator have in common."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        timeout_s: float,
        core: _core.Communicator,
        plans: PlanCache,
        narrator: Narrator,
    ) -> None:
        """Keep everything; the barrier's one byte is made here."""
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.core = core
        self.plans = plans
        self.narrator = narrator
        self.sites = CallSites(core) if CallSites.wanted() else None
        self.barrier_byte = np.zeros(1, np.uint8)
        self.barrier_address = self.barrier_byte.ctypes.data


class Engine(NamedTuple):
    """The three ways into C++, all blocking or none; for what they take see `csrc/bindings.cc`."""

    data: Callable[..., Any]
    blocks: Callable[..., Any]
    transfer: Callable[..., Any]


class Calls(ABC, Generic[Result]):
    """The collectives. Every method takes `timeout_s`; None is the communicator's own.

    All raise InvalidArgumentError for a wrong argument, after which the communicator is as it was,
    and CommunicatorError (see `hccl_py.transport.errors`) if the call fails. Buffers of one call
    overlap only where it says so.
    """

    _engine: Engine

    def __init__(self, shared: Shared) -> None:
        """Share the communicator."""
        self._shared = shared
        self.use(shared.core)

    def use(self, core: _core.Communicator) -> None:
        """Take the engine's entries; also those of what stands in for it once it is gone."""
        engine = self._entries(core)
        sites = self._shared.sites
        if sites is not None:
            sites.core = core
            watched = sites.watch(engine.data), sites.watch(engine.blocks)
            engine = Engine(*watched, engine.transfer)
        self._engine = engine

    @abstractmethod
    def _entries(self, core: _core.Communicator) -> Engine:
        """Return the entries of this face."""

    def all_reduce(self, data: Buffer, op: int = _SUM, *, timeout_s: float | None = None) -> Result:
        """Reduce `data` over all ranks, in place; every rank ends with the same bits.

        Args:
            data: same element type and count on all ranks, any shape.
            op: a ReduceOp.
            timeout_s: deadline of this call.
        """
        address, count, kind = span_of(data, writable=True)
        if op not in kind.ops:
            raise _not_reducible(op, kind)
        prepared = self._shared.plans.get("all_reduce", kind.number, op, count)
        return self._data(prepared, op == _AVG, address, data, timeout_s)

    def broadcast(self, data: Buffer, root: int, *, timeout_s: float | None = None) -> Result:
        """Copy `data` of rank `root` to all ranks. Any element type."""
        self._check_rank("root", root)
        address, count, kind = span_of(data, writable=root != self._shared.rank)
        units = count * kind.units
        prepared = self._shared.plans.get("broadcast", kind.number, _SUM, units, root)
        return self._data(prepared, False, address, data, timeout_s)

    def reduce(
        self, data: Buffer, root: int, op: int = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce `data` over all ranks into that of `root`; the others' stays as it is."""
        self._check_rank("root", root)
        is_root = root == self._shared.rank
        address, count, kind = span_of(data, writable=is_root)
        if op not in kind.ops:
            raise _not_reducible(op, kind)
        prepared = self._shared.plans.get("reduce", kind.number, op, count, root)
        # Only the root holds a sum to be divided.
        return self._data(prepared, op == _AVG and is_root, address, data, timeout_s)

    def barrier(self, *, timeout_s: float | None = None) -> Result:
        """Return once every rank has called it."""
        shared = self._shared
        prepared = shared.plans.get("barrier", _BYTE, _SUM, 1)
        address, byte = shared.barrier_address, shared.barrier_byte
        return self._data(prepared, False, address, byte, timeout_s)

    def all_gather(
        self, output: Blocks, input: Buffer, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of `output`, on all ranks.

        Args:
            output: world_size blocks; block i as long as rank i's input.
            input: any element type; may be this rank's block of `output` itself.
            timeout_s: deadline of this call.
        """
        source = span_of(input, "input")
        targets = blocks_of(output, "output", self._shared.world_size, writable=True)
        self._check_own_block("output", targets, "input", source)
        # Blocks may be uneven, but all of them together are as long on every rank.
        kind = source.kind
        total = sum(block.count for block in targets) * kind.units
        prepared = self._shared.plans.get("all_gather", kind.number, _SUM, total)
        return self._moved(prepared, ([source], targets), (output, input), timeout_s)

    def reduce_scatter(
        self, output: Buffer, input: Blocks, op: int = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce block i of all ranks' `input` into the `output` of rank i.

        Args:
            output: as long as one block; may be this rank's block of `input` itself.
            input: world_size blocks of one length; never written otherwise.
            op: a ReduceOp.
            timeout_s: deadline of this call.
        """
        target = span_of(output, "output", writable=True)
        sources = blocks_of(input, "input", self._shared.world_size)
        for rank, block in enumerate(sources):
            _check_block("input", rank, block, "output", target)
        if op not in target.kind.ops:
            raise _not_reducible(op, target.kind)
        number, parts = target.kind.number, target.kind.parts
        spans = (
            [(block.address, block.count * parts) for block in sources],
            [(target.address, target.count * parts)],
        )
        total = target.count * len(sources)
        prepared = self._shared.plans.get("reduce_scatter", number, op, total)
        return self._run_blocks(prepared, op == _AVG, spans, (output, input), timeout_s)

    def all_to_all(
        self, output: Blocks, input: Blocks, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of `input` to rank i, and receive block i of `output` from it.

        What rank a sends to b must be as long as what b receives from a; blocks may be uneven.
        """
        sources = blocks_of(input, "input", self._shared.world_size)
        targets = blocks_of(output, "output", self._shared.world_size, writable=True)
        self._check_own_block("output", targets, "input", sources[self._shared.rank])
        number = sources[0].kind.number
        prepared = self._shared.plans.get("all_to_all", number, _SUM, 0)
        return self._moved(prepared, (sources, targets), (output, input), timeout_s)

    def gather(
        self, output: Blocks | None, input: Buffer, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of the root's `output`; others pass None.

        The root's `input` may be its block of `output` itself.
        """
        self._check_rank("root", root)
        source = span_of(input, "input")
        targets: list[Span] = []
        if self._is_root(root, "output", output):
            targets = blocks_of(output, "output", self._shared.world_size, writable=True)
            self._check_own_block("output", targets, "input", source)
        prepared = self._shared.plans.get("gather", source.kind.number, _SUM, 0, root)
        return self._moved(prepared, ([source], targets), (output, input), timeout_s)

    def scatter(
        self, output: Buffer, input: Blocks | None, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of the root's `input` to `output` of rank i; others pass None as input.

        The root's `output` may be its block of `input` itself.
        """
        self._check_rank("root", root)
        target = span_of(output, "output", writable=True)
        sources: list[Span] = []
        if self._is_root(root, "input", input):
            sources = blocks_of(input, "input", self._shared.world_size)
            self._check_own_block("input", sources, "output", target)
        prepared = self._shared.plans.get("scatter", target.kind.number, _SUM, 0, root)
        return self._moved(prepared, (sources, [target]), (output, input), timeout_s)

    def send(
        self, data: Buffer, peer: int, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Send `data` to a recv of `peer` with the same tag and size.

        Args:
            data: any element type.
            peer: a rank, this one included.
            tag: 0 to 2^64 - 1.
            timeout_s: deadline of this call.
        """
        self._check_rank("peer", peer)
        _check_tag(tag)
        span = span_of(data)
        return self._transfer(Transfer(True, peer, tag, span.num_bytes), span, data, timeout_s)

    def recv(
        self, data: Buffer, peer: int | None, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Receive into `data` from `peer`, or, if that is None, from whoever sends first."""
        if peer is not None:
            self._check_rank("peer", peer)
        _check_tag(tag)
        span = span_of(data, writable=True)
        return self._transfer(Transfer(False, peer, tag, span.num_bytes), span, data, timeout_s)

    # ------------------------------------------------------------ how a call runs

    # A blocking entry returns None, which is the result; around what the others return goes a Work.

    def _around(self, started: _core.Work, limit_s: float, call: int | Transfer) -> Any:
        return Work(started, self._shared.narrator, limit_s, call)

    def _data(
        self,
        prepared: _core.Prepared,
        divide: bool,
        address: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        try:
            started = self._engine.data(prepared, limit, address, divide, buffers)
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, prepared.fingerprint) from None
        return started and self._around(started, limit, prepared.fingerprint)  # type: ignore[no-any-return]

    def _run_blocks(
        self,
        prepared: _core.Prepared,
        divide: bool,
        spans: tuple[SpanList, SpanList],
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        try:
            started = self._engine.blocks(prepared, limit, *spans, divide, buffers)
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, prepared.fingerprint) from None
        return started and self._around(started, limit, prepared.fingerprint)  # type: ignore[no-any-return]

    def _moved(
        self,
        prepared: _core.Prepared,
        spans: tuple[Sequence[Span], Sequence[Span]],
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        sources, targets = spans
        bytes_of = (
            [(source.address, source.num_bytes) for source in sources],
            [(target.address, target.num_bytes) for target in targets],
        )
        return self._run_blocks(prepared, False, bytes_of, buffers, timeout_s)

    def _transfer(
        self, transfer: Transfer, span: Span, buffers: object, timeout_s: float | None
    ) -> Result:
        sends, peer, tag, num_bytes = transfer
        limit = self._shared.timeout_s if timeout_s is None else timeout_s
        who = -1 if peer is None else peer
        try:
            started = self._engine.transfer(
                sends, span.address, num_bytes, who, tag, limit, buffers
            )
        except _core.CommunicatorFailed as failure:
            raise self._shared.narrator.tell(failure, limit, transfer) from None
        return started and self._around(started, limit, transfer)  # type: ignore[no-any-return]

    # ------------------------------------------------------------ checks

    def _check_own_block(
        self, name: str, blocks: Sequence[Span], other_name: str, other: Span
    ) -> None:
        rank = self._shared.rank
        _check_block(name, rank, blocks[rank], other_name, other)

    def _check_rank(self, name: str, rank: int) -> None:
        n = self._shared.world_size
        if rank not in range(n):
            raise InvalidArgumentError(f"{name}: expected a rank of 0..{n - 1}, got {rank!r}")

    def _is_root(self, root: int, name: str, blocks: object) -> bool:
        is_root = self._shared.rank == root
        if is_root == (blocks is None):
            raise InvalidArgumentError(
                f"{name}: expected {'blocks on the root' if is_root else 'None'} "
                f"(this is rank {self._shared.rank}, root is {root}), got {type(blocks).__name__}"
            )
        return is_root


def _not_reducible(op: int, kind: Kind) -> InvalidArgumentError:
    if op not in range(len(ReduceOp)):
        return InvalidArgumentError(f"op: expected a ReduceOp, got {op!r}")
    name = ReduceOp(op).name.lower()
    return InvalidArgumentError(
        f"op: expected one that is defined for elements of type {kind.name}, got {name}"
    )


def _check_block(name: str, rank: int, block: Span, other_name: str, other: Span) -> None:
    require_kind(block, name, other, other_name)
    if block.count != other.count:
        raise InvalidArgumentError(
            f"{name}: expected block {rank} to have {other.count} elements like {other_name}, "
            f"got {block.count}"
        )


def _check_tag(tag: int) -> None:
    if not isinstance(tag, int) or not 0 <= tag <= _MAX_TAG:
        raise InvalidArgumentError(f"tag: expected a number of 0..2^64-1, got {tag!r}")


class BlockingCalls(Calls[None]):
    """Each call runs to its end on the calling thread."""

    def _entries(self, core: _core.Communicator) -> Engine:
        return Engine(core.run_data, core.run_blocks, core.run_transfer)


class NonblockingCalls(Calls[Work]):
    """Each call returns a Work at once; the progress thread, or whoever waits, drives it."""

    def _entries(self, core: _core.Communicator) -> Engine:
        return Engine(core.start_data, core.start_blocks, core.start_transfer)
