"""Every collective, once: arguments are checked and become addresses, counts and a plan.

How a call then runs, to its end or in the background, is the business of the two subclasses at the
end. Nothing is sent before all arguments of the call were found good.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from hccl_py.buffers import Span, measure, require_writable, span_of
from hccl_py.failures import Narrator
from hccl_py.fingerprint import pack
from hccl_py.plans import PlanCache, Prepared
from hccl_py.transport import _core
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import DType, ReduceOp
from hccl_py.work import Work

Buffer = Any
"""A contiguous CPU torch tensor or a C-contiguous numpy array."""
Blocks = Any
"""One Buffer of world_size equal blocks, or a sequence of world_size Buffers of any sizes."""

Result = TypeVar("Result", covariant=True)

_BYTES = int(DType.UINT8)
_SUM = int(ReduceOp.SUM)
_AVG = int(ReduceOp.AVG)
# [dtype][op]; the last row is what MOVED_ONLY (-1) finds.
_REDUCIBLE = [[_core.reduce_supported(int(d), int(op)) for op in ReduceOp] for d in DType]
_REDUCIBLE.append([False] * len(ReduceOp))


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
        self.barrier_byte = np.zeros(1, np.uint8)


class Calls(ABC, Generic[Result]):
    """The collectives. Every method takes `timeout_s`; None is the communicator's own.

    All raise InvalidArgumentError for a wrong argument, after which the communicator is as it was,
    and CommunicatorError (see `hccl_py.errors`) if the call fails.
    """

    def __init__(self, shared: Shared) -> None:
        """Share the communicator."""
        self._shared = shared

    def all_reduce(
        self, data: Buffer, op: int = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce `data` over all ranks, in place; every rank ends with the same bits.

        Args:
            data: same element type and count on all ranks, any shape.
            op: a ReduceOp.
            timeout_s: deadline of this call.
        """
        address, count, dtype, item_bytes, is_complex = measure(data)
        if is_complex or not _REDUCIBLE[dtype][op]:
            _check_reducible(data, op)
        prepared = self._shared.plans.get("all_reduce", count * item_bytes)
        return self._data(prepared, dtype, op, address, count, data, timeout_s)

    def broadcast(self, data: Buffer, root: int, *, timeout_s: float | None = None) -> Result:
        """Copy `data` of rank `root` to all ranks. Any element type."""
        address, count, _, item_bytes, _ = measure(data)
        self._check_rank("root", root)
        num_bytes = count * item_bytes
        prepared = self._shared.plans.get("broadcast", num_bytes, root)
        return self._data(prepared, _BYTES, _SUM, address, num_bytes, data, timeout_s)

    def reduce(
        self, data: Buffer, root: int, op: int = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce `data` over all ranks into that of `root`; the others' stays as it is."""
        address, count, dtype, item_bytes, is_complex = measure(data)
        self._check_rank("root", root)
        if is_complex or not _REDUCIBLE[dtype][op]:
            _check_reducible(data, op)
        prepared = self._shared.plans.get("reduce", count * item_bytes, root)
        return self._data(prepared, dtype, op, address, count, data, timeout_s)

    def barrier(self, *, timeout_s: float | None = None) -> Result:
        """Return once every rank has called it."""
        byte = self._shared.barrier_byte
        prepared = self._shared.plans.get("barrier", 1)
        return self._data(prepared, _BYTES, _SUM, byte.ctypes.data, 1, byte, timeout_s)

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
        total, blocks = self._blocks(output, "output", source)
        require_writable(output, "output")
        self._check_own_block("output", blocks, "input", source)
        prepared = self._shared.plans.get("all_gather", total)
        return self._moved(prepared, [source], blocks, (output, input), timeout_s)

    def reduce_scatter(
        self, output: Buffer, input: Blocks, op: int = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce block i of all ranks' `input` into the `output` of rank i.

        Args:
            output: as long as one block.
            input: world_size blocks of one length; never written.
            op: a ReduceOp.
            timeout_s: deadline of this call.
        """
        target = span_of(output, "output")
        require_writable(output, "output")
        total, blocks = self._blocks(input, "input", target)
        for rank, block in enumerate(blocks):
            if block.count != target.count:
                raise InvalidArgumentError(
                    f"input: expected {self._shared.world_size} blocks of {target.count} elements "
                    f"like output, block {rank} has {block.count}"
                )
        if not _REDUCIBLE[target.dtype][op] or target.is_complex:
            _check_reducible(output, op)
        prepared = self._shared.plans.get("reduce_scatter", total)
        return self._reduced(prepared, op, blocks, target, (output, input), timeout_s)

    def all_to_all(
        self, output: Blocks, input: Blocks, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of `input` to rank i, and receive block i of `output` from it.

        What rank a sends to b must be as long as what b receives from a; blocks may be uneven.
        """
        _, sources = self._blocks(input, "input")
        _, targets = self._blocks(output, "output", sources[0])
        require_writable(output, "output")
        self._check_own_block("output", targets, "input", sources[self._shared.rank])
        prepared = self._shared.plans.get("all_to_all", 0)
        return self._moved(prepared, sources, targets, (output, input), timeout_s)

    def gather(
        self, output: Blocks | None, input: Buffer, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of the root's `output`; others pass None."""
        self._check_rank("root", root)
        source = span_of(input, "input")
        targets: Sequence[Span] = []
        if self._is_root(root, "output", output):
            _, targets = self._blocks(output, "output", source)
            require_writable(output, "output")
            self._check_own_block("output", targets, "input", source)
        prepared = self._shared.plans.get("gather", 0, root)
        return self._moved(prepared, [source], targets, (output, input), timeout_s)

    def scatter(
        self, output: Buffer, input: Blocks | None, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of the root's `input` to `output` of rank i; others pass None as input."""
        self._check_rank("root", root)
        target = span_of(output, "output")
        require_writable(output, "output")
        sources: Sequence[Span] = []
        if self._is_root(root, "input", input):
            _, sources = self._blocks(input, "input", target)
            self._check_own_block("input", sources, "output", target)
        prepared = self._shared.plans.get("scatter", 0, root)
        return self._moved(prepared, sources, [target], (output, input), timeout_s)

    def send(
        self, data: Buffer, peer: int, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Send `data` to a recv of `peer` with the same tag and size."""
        self._check_rank("peer", peer)
        return self._transfer(True, span_of(data), peer, tag, data, timeout_s)

    def recv(
        self, data: Buffer, peer: int | None, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Receive into `data` from `peer`, or, if that is None, from whoever sends first."""
        if peer is not None:
            self._check_rank("peer", peer)
        require_writable(data, "data")
        return self._transfer(
            False, span_of(data), -1 if peer is None else peer, tag, data, timeout_s
        )

    # ------------------------------------------------------------ how a call runs

    @abstractmethod
    def _data(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        address: int,
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Result: ...

    @abstractmethod
    def _run_blocks(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        spans: tuple[list[tuple[int, int]], list[tuple[int, int]]],
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Result: ...

    @abstractmethod
    def _transfer(
        self, sends: bool, span: Span, peer: int, tag: int, buffers: object, timeout_s: float | None
    ) -> Result: ...

    def _moved(
        self,
        prepared: Prepared,
        sources: Sequence[Span],
        targets: Sequence[Span],
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        spans = (
            [(s.address, s.count * s.item_bytes) for s in sources],
            [(t.address, t.count * t.item_bytes) for t in targets],
        )
        # Blocks may be uneven, and then ranks see different lengths: none goes into the fingerprint.
        return self._run_blocks(prepared, _BYTES, _SUM, spans, 0, buffers, timeout_s)

    def _reduced(
        self,
        prepared: Prepared,
        op: int,
        sources: Sequence[Span],
        target: Span,
        buffers: object,
        timeout_s: float | None,
    ) -> Result:
        spans = ([(s.address, s.count) for s in sources], [(target.address, target.count)])
        return self._run_blocks(
            prepared, target.dtype, op, spans, target.count, buffers, timeout_s
        )

    # ------------------------------------------------------------ checks

    def _blocks(
        self, blocks: Blocks, name: str, like: Span | None = None
    ) -> tuple[int, Sequence[Span]]:
        """Return the bytes of all blocks together, and the blocks."""
        n = self._shared.world_size
        if isinstance(blocks, (list, tuple)):
            if len(blocks) != n:
                raise InvalidArgumentError(
                    f"{name}: expected one buffer per rank ({n}), got {len(blocks)}"
                )
            spans = [span_of(block, f"{name}[{rank}]") for rank, block in enumerate(blocks)]
        else:
            whole = span_of(blocks, name)
            count, rest = divmod(whole.count, n)
            if rest:
                raise InvalidArgumentError(
                    f"{name}: expected a size that {n} ranks can divide evenly, got {whole.count} "
                    "elements; pass a list of buffers for uneven blocks"
                )
            step = count * whole.item_bytes
            spans = [whole._replace(address=whole.address + r * step, count=count) for r in range(n)]
        for rank, span in enumerate(spans):
            first = like or spans[0]
            if (span.dtype, span.item_bytes) != (first.dtype, first.item_bytes):
                raise InvalidArgumentError(
                    f"{name}: expected one element type throughout, block {rank} differs"
                )
        return sum(span.count * span.item_bytes for span in spans), spans

    def _check_own_block(
        self, name: str, blocks: Sequence[Span], other_name: str, other: Span
    ) -> None:
        own = blocks[self._shared.rank]
        if own.count != other.count:
            raise InvalidArgumentError(
                f"{name}: expected block {self._shared.rank} (this rank's) to have "
                f"{other.count} elements like {other_name}, it has {own.count}"
            )

    def _check_rank(self, name: str, rank: int) -> None:
        n = self._shared.world_size
        if not 0 <= rank < n:
            raise InvalidArgumentError(f"{name}: expected a rank of 0..{n - 1}, got {rank}")

    def _is_root(self, root: int, name: str, blocks: object) -> bool:
        is_root = self._shared.rank == root
        if is_root == (blocks is None):
            raise InvalidArgumentError(
                f"{name}: expected {'blocks on the root' if is_root else 'None'} "
                f"(this is rank {self._shared.rank}, root is {root}), got {type(blocks).__name__}"
            )
        return is_root


class BlockingCalls(Calls[None]):
    """Each call runs to its end on the calling thread."""

    def _data(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        address: int,
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> None:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        call = pack(prepared.call, dtype, op, count)
        try:
            shared.core.run_data(
                prepared.plan, dtype, op, call, limit, address, count, op == _AVG
            )
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit, call) from None

    def _run_blocks(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        spans: tuple[list[tuple[int, int]], list[tuple[int, int]]],
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> None:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        call = pack(prepared.call, dtype, op, count)
        try:
            shared.core.run_blocks(prepared.plan, dtype, op, call, limit, *spans, op == _AVG)
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit, call) from None

    def _transfer(
        self, sends: bool, span: Span, peer: int, tag: int, buffers: object, timeout_s: float | None
    ) -> None:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        num_bytes = span.count * span.item_bytes
        try:
            shared.core.run_transfer(sends, span.address, num_bytes, peer, tag, limit)
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit) from None


class NonblockingCalls(Calls[Work]):
    """Each call returns a Work at once; the progress thread, or whoever waits, drives it."""

    def _data(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        address: int,
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Work:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        call = pack(prepared.call, dtype, op, count)
        try:
            work = shared.core.start_data(
                prepared.plan, dtype, op, call, limit, address, count, op == _AVG, buffers
            )
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit, call) from None
        return Work(work, shared.narrator, limit, call)

    def _run_blocks(
        self,
        prepared: Prepared,
        dtype: int,
        op: int,
        spans: tuple[list[tuple[int, int]], list[tuple[int, int]]],
        count: int,
        buffers: object,
        timeout_s: float | None,
    ) -> Work:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        call = pack(prepared.call, dtype, op, count)
        try:
            work = shared.core.start_blocks(
                prepared.plan, dtype, op, call, limit, *spans, op == _AVG, buffers
            )
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit, call) from None
        return Work(work, shared.narrator, limit, call)

    def _transfer(
        self, sends: bool, span: Span, peer: int, tag: int, buffers: object, timeout_s: float | None
    ) -> Work:
        shared = self._shared
        limit = shared.timeout_s if timeout_s is None else timeout_s
        num_bytes = span.count * span.item_bytes
        try:
            work = shared.core.start_transfer(
                sends, span.address, num_bytes, peer, tag, limit, buffers
            )
        except _core.CommunicatorFailed as failure:
            raise shared.narrator.tell(failure, limit) from None
        return Work(work, shared.narrator, limit, None)


def _check_reducible(data: Buffer, op: int) -> None:
    """Explain what cannot be reduced; return for complex sums, which can."""
    span, name = span_of(data), ReduceOp(op).name.lower()
    if not (span.is_complex and op in (_SUM, _AVG)) and not (
        _REDUCIBLE[span.dtype][op] and not span.is_complex
    ):
        raise InvalidArgumentError(f"op: {name} is not defined for elements of type {data.dtype}")
