"""Every collective, once: arguments are checked and become addresses, counts and a plan.

Each call ends in `submit.py`. Nothing is sent before all arguments of a call have been checked.

A method that is `remembered` runs only for new arguments, and describes them to `KnownCalls.learn`.
Later calls whose arguments have the same types, lengths and numbers go to the engine without a
Python frame (`csrc/bindings/known_calls.cc`). Keywords, subclasses, read-only memory, groups, a
closed communicator and HCCL_DEBUG=1 still take the method.
"""

from collections.abc import Sequence
from typing import Any, Generic

import numpy as np

from hccl_py.call_group import CALLS, require_copyable
from hccl_py.communicator_state import CommunicatorState
from hccl_py.compression import ErrorFeedback, compression_named
from hccl_py.fingerprint import Transfer
from hccl_py.memory.arguments import check_apart, check_block, copy_to_output, naming, set_aside
from hccl_py.memory.buffers import blocks_of, cut, run_of, span_of
from hccl_py.memory.element_types import ELEMENT_TYPES, Span
from hccl_py.memory.scaled import scaled
from hccl_py.plan_cache import PlanCache
from hccl_py.recording import CAPTURES, recording_here, reject_in_capture
from hccl_py.submit import EngineCalls, Result
from hccl_py.transport import _core
from hccl_py.transport.arguments import wrong
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import Compression, DType, ReduceOp
from hccl_py.work import Work

Buffer = Any
"""A contiguous CPU torch tensor or numpy array, or whatever else `buffers.py` finds memory in."""
Blocks = Any
"""One Buffer of world_size equal blocks, or a sequence of world_size Buffers of any sizes."""

Op = Any
"""A ReduceOp, or what `premul_sum` returned."""

_BYTE = ELEMENT_TYPES[DType.UINT8]
_SUM = int(ReduceOp.SUM)


class Collectives(Generic[Result]):
    """The collectives of a communicator, all blocking or all in the background.

    Every method takes `timeout_s`; None is the communicator's own.

    All raise InvalidArgumentError for a wrong argument, after which the communicator is as it was,
    and CommunicatorError (see `hccl_py.transport.errors`) if the call fails. Buffers of one call
    overlap only where it says so. An `output` that is given beside `data` may be the same memory;
    its old values are gone even if the call fails.
    """

    # `known_calls.cc` reads it where it lies; all else of an object is in its __dict__.
    __slots__ = ("__dict__", "__weakref__", "_fast_path")

    def __init__(self, state: CommunicatorState, *, blocking: bool) -> None:
        self._state = state
        self._calls: EngineCalls[Result] = EngineCalls(state, blocking)
        self._byte = np.zeros(1, np.uint8)  # what a barrier reduces
        self._byte_address = self._byte.ctypes.data
        self._known = state.plans.known
        # None: every call is to take the functions below, and so `submit.py`.
        self._fast_path: _core.FastPath | None = None
        if not state.recorder.sites.are_noted:
            work = None if blocking else Work
            self._fast_path = _core.FastPath(
                state, self._known, CALLS, CAPTURES, state.errors, work
            )

    @_core.remembered
    def all_reduce(
        self,
        data: Buffer,
        op: Op = _SUM,
        *,
        output: Buffer | None = None,
        compression: ErrorFeedback | str | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Reduce `data` over all ranks, in place; every rank ends with the same bits.

        Args:
            data: same element type and count on all ranks, any shape.
            output: takes the result instead; then `data` is only read.
            compression: `none`, `bf16` or `int8`, or an ErrorFeedback of this tensor; the same on
                all ranks. None: that of the communicator.
        """
        address, count, kind = span = span_of(data, "data", output is None)
        if not isinstance(op, int):
            target, given = data if output is None else output, self._scaled(op, span)
            return self.all_reduce(
                given, output=target, compression=compression, timeout_s=timeout_s
            )
        state = self._state
        plans = state.plans
        if compression is not None or state.gain.is_open:
            plans = self._compressed_plans(compression)
        prepared = plans["all_reduce", kind, op, count, None]
        if output is not None:
            address, data = self._copied(span, data, output), output
        elif compression is None and not state.gain.is_open:
            self._known.learn(("all_reduce", data, op), prepared)
        limit_s = state.limit(timeout_s)
        if compression is not None and prepared.compressed and not isinstance(compression, str):
            reject_in_capture("what ErrorFeedback keeps", "compress by name, or call it outside")
            residual, both = compression.address(count), (data, compression)
            return self._calls.enter(
                self._calls.feedback, (state.core, prepared, limit_s, address, residual, both)
            )
        return self._calls.enter(self._calls.data, (state.core, prepared, limit_s, address, data))

    @_core.remembered
    def broadcast(
        self,
        data: Buffer,
        root: int,
        *,
        output: Buffer | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Copy `data` of rank `root` into that of all ranks. Any element type.

        With `output` it goes there instead, on the root too; then `data` is only read, and only on
        the root: the others may pass None.
        """
        state = self._state
        self._check_rank("root", root)
        is_root = root == state.rank
        if output is not None and not is_root:
            data = output
        address, count, kind = span = span_of(data, "data", not is_root)
        prepared = state.plans["broadcast", kind, _SUM, count, root]
        if output is not None and is_root:
            address, data = self._copied(span, data, output), output
        elif output is None:
            self._known.learn(("broadcast", data, root), prepared)
        limit_s = state.limit(timeout_s)
        return self._calls.enter(self._calls.data, (state.core, prepared, limit_s, address, data))

    @_core.remembered
    def reduce(
        self,
        data: Buffer,
        root: int,
        op: Op = _SUM,
        *,
        output: Buffer | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Reduce `data` over all ranks into that of `root`; the others' stays as it is.

        Args:
            data: same element type and count on all ranks, any shape.
            root: a rank.
            output: takes the result on the root instead, whose `data` is then only read; the
                others' is not looked at.
        """
        self._check_rank("root", root)
        is_root = root == self._state.rank
        address, count, kind = span = span_of(data, "data", is_root and output is None)
        if not isinstance(op, int):
            target = output if output is not None or not is_root else data
            return self.reduce(self._scaled(op, span), root, output=target, timeout_s=timeout_s)
        state = self._state
        prepared = state.plans["reduce", kind, op, count, root]
        if output is not None and is_root:
            address, data = self._copied(span, data, output), output
        elif output is None:
            self._known.learn(("reduce", data, root, op), prepared)
        limit_s = state.limit(timeout_s)
        return self._calls.enter(self._calls.data, (state.core, prepared, limit_s, address, data))

    @_core.remembered
    def barrier(self, *, timeout_s: float | None = None) -> Result:
        """Return once every rank has called it."""
        state = self._state
        prepared = state.plans["barrier", _BYTE, _SUM, 1, None]
        self._known.learn(("barrier",), prepared, data=self._byte_address)
        limit_s = state.limit(timeout_s)
        # No local of its own: the traceback of an error must not keep the engine.
        return self._calls.enter(
            self._calls.data, (state.core, prepared, limit_s, self._byte_address, self._byte)
        )

    @_core.remembered
    def all_gather(
        self, output: Blocks, input: Buffer, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of `output`, on all ranks.

        Args:
            output: world_size blocks; block i as long as rank i's input.
            input: any element type; may be this rank's block of `output` itself.
        """
        state = self._state
        n = state.world_size
        source = address, count, kind = span_of(input, "input")
        if not isinstance(output, (list, tuple)):
            whole = target, total, its_kind = span_of(output, "output", True)
            if total == count * n and its_kind is kind:
                both, step = (output, input), count * kind.item_bytes
                if whole.meets(source):
                    self._check_apart(both, cut(whole, n), [source])
                prepared = state.plans["all_gather", kind, _SUM, total, None]
                limit_s = state.limit(timeout_s)
                self._known.learn(("all_gather", output, input), prepared, (n, 1, step))
                return self._calls.enter(
                    self._calls.equal,
                    (state.core, prepared, limit_s, address, 1, target, n, step, both),
                )
        targets = blocks_of(output, "output", n, writable=True)
        check_block("output", targets[state.rank], "input", source, state.rank)
        self._check_apart((output, input), targets, [source])
        # Blocks may be uneven, but all of them together are as long on every rank.
        total = sum(block.count for block in targets)
        equal = all(block.count == count for block in targets)
        plans = state.plans if equal else state.plans.uneven
        prepared = plans["all_gather", kind, _SUM, total, None]
        if equal:
            self._known.learn(("all_gather", output, input), prepared, (n, 1, source.num_bytes))
        return self._uneven(prepared, [source], targets, (output, input), timeout_s)

    @_core.remembered
    def reduce_scatter(
        self, output: Buffer, input: Blocks, op: Op = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce block i of all ranks' `input` into the `output` of rank i.

        Args:
            output: as long as one block; may be this rank's block of `input` itself.
            input: world_size blocks of one length; never written otherwise.
        """
        state = self._state
        n = state.world_size
        if not isinstance(op, int):
            sources = blocks_of(input, "input", n)
            products = [self._scaled(op, block) for block in sources]
            self._check_apart((output, input), [span_of(output, "output", True)], sources)
            input, op = products, _SUM
        plans = self._compressed_plans(None) if state.gain.is_open else state.plans
        target = address, count, kind = span_of(output, "output", True)
        if not isinstance(input, (list, tuple)):
            whole = source, total, its_kind = span_of(input, "input")
            if total == count * n and its_kind is kind:
                both, step = (output, input), count * kind.parts
                if whole.meets(target):
                    self._check_apart(both, [target], cut(whole, n))
                prepared = plans["reduce_scatter", kind, op, total, None]
                limit_s = state.limit(timeout_s)
                if not state.gain.is_open:
                    call = "reduce_scatter", output, input, op
                    self._known.learn(call, prepared, (1, n, step))
                return self._calls.enter(
                    self._calls.equal,
                    (state.core, prepared, limit_s, source, n, address, 1, step, both),
                )
        sources = blocks_of(input, "input", n)
        for rank, block in enumerate(sources):
            check_block("input", block, "output", target, rank)
        self._check_apart((output, input), [target], sources)
        prepared = plans["reduce_scatter", kind, op, count * n, None]
        part_bytes = kind.item_bytes // kind.parts
        if not state.gain.is_open:
            call = "reduce_scatter", output, input, op
            self._known.learn(call, prepared, (1, n, target.num_bytes // part_bytes))
        return self._uneven(prepared, sources, [target], (output, input), timeout_s, part_bytes)

    @_core.remembered
    def all_to_all(
        self, output: Blocks, input: Blocks, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of `input` to rank i, and receive block i of `output` from it.

        What rank a sends to b must be as long as what b receives from a; blocks may be uneven.

        Args:
            output: world_size blocks; may be `input` itself, or have the same blocks: then what is
                to be sent is copied aside first.
            input: world_size blocks.
        """
        state = self._state
        n = state.world_size
        if not isinstance(output, (list, tuple)) and not isinstance(input, (list, tuple)):
            given = source, total, kind = span_of(input, "input")
            taken = target, its_total, its_kind = span_of(output, "output", True)
            is_equal = total == its_total and total % n == 0 and its_kind is kind
            if is_equal and not given.meets(taken):
                both, step = (output, input), total // n * kind.item_bytes
                prepared = state.plans["all_to_all", kind, _SUM, total, None]
                limit_s = state.limit(timeout_s)
                self._known.learn(("all_to_all", output, input), prepared, (n, n, step))
                return self._calls.enter(
                    self._calls.equal,
                    (state.core, prepared, limit_s, source, n, target, n, step, both),
                )
        sources = blocks_of(input, "input", n)
        targets = blocks_of(output, "output", n, writable=True)
        check_block("output", targets[state.rank], "input", sources[state.rank], state.rank)
        # What is set aside has to live as long as the call.
        kept: object = input
        is_in_place = run_of(sources) == run_of(targets) is not None
        self._check_apart((output, input), targets, () if is_in_place else sources)
        pairs = zip(sources, targets, strict=True)
        if is_in_place or any(one.meets(other) for one, other in pairs):
            reject_in_capture("all_to_all in place", "pass an output of its own")
            require_copyable("the copy of input", sources)
            kept, sources = set_aside(sources)
        # Equal lists here may be uneven ones elsewhere, one buffer has equal blocks on every rank.
        listed = isinstance(output, (list, tuple)) or isinstance(input, (list, tuple))
        plans, total = (state.plans.uneven, 0) if listed else (state.plans, n * sources[0].count)
        prepared = plans["all_to_all", sources[0].kind, _SUM, total, None]
        return self._uneven(prepared, sources, targets, (output, kept), timeout_s)

    def gather(
        self, output: Blocks | None, input: Buffer, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of the root's `output`; others pass None.

        The root's `input` may be its block of `output` itself.
        """
        self._check_rank("root", root)
        state = self._state
        source = span_of(input, "input")
        targets: list[Span] = []
        if self._is_root(root, "output", output):
            targets = blocks_of(output, "output", state.world_size, writable=True)
            check_block("output", targets[root], "input", source, root)
            self._check_apart((output, input), targets, [source])
        prepared = state.plans["gather", source.kind, _SUM, 0, root]
        return self._uneven(prepared, [source], targets, (output, input), timeout_s)

    def scatter(
        self, output: Buffer, input: Blocks | None, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of the root's `input` to `output` of rank i; others pass None as input.

        The root's `output` may be its block of `input` itself.
        """
        self._check_rank("root", root)
        state = self._state
        target = span_of(output, "output", writable=True)
        sources: list[Span] = []
        if self._is_root(root, "input", input):
            sources = blocks_of(input, "input", state.world_size)
            check_block("input", sources[root], "output", target, root)
            self._check_apart((output, input), [target], sources)
        prepared = state.plans["scatter", target.kind, _SUM, 0, root]
        return self._uneven(prepared, sources, [target], (output, input), timeout_s)

    def send(
        self, data: Buffer, peer: int, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Send `data` to a recv of `peer`, any rank, with the same tag (0 to 2^64 - 1) and size."""
        self._check_rank("peer", peer)
        return self._transfer(True, data, peer, tag, timeout_s)

    def recv(
        self, data: Buffer, peer: int | None, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Receive into `data` from `peer`, or, if that is None, from the first rank that sends."""
        if peer is not None:
            self._check_rank("peer", peer)
        return self._transfer(False, data, peer, tag, timeout_s)

    def _check_apart(
        self, both: tuple[Any, Any], outputs: Sequence[Span], inputs: Sequence[Span]
    ) -> None:
        names = naming("output", both[0]), naming("input", both[1])
        check_apart(outputs, inputs, self._state.rank, names)

    def _uneven(
        self,
        prepared: _core.Prepared,
        sources: Sequence[Span],
        targets: Sequence[Span],
        buffers: tuple[Any, Any],
        timeout_s: float | None,
        unit_bytes: int = 1,  # of an element as the engine sees it
    ) -> Result:
        state = self._state
        limit_s = state.limit(timeout_s)
        given = [(block.address, block.num_bytes // unit_bytes) for block in sources]
        taken = [(block.address, block.num_bytes // unit_bytes) for block in targets]
        # Their owner may change a list while the call runs.
        kept = tuple(tuple(one) if isinstance(one, list) else one for one in buffers)
        return self._calls.enter(
            self._calls.blocks, (state.core, prepared, limit_s, given, taken, kept)
        )

    def _transfer(
        self, sends: bool, data: Buffer, peer: int | None, tag: int, timeout_s: float | None
    ) -> Result:
        if not isinstance(tag, int) or not 0 <= tag < 1 << 64:
            raise wrong("tag", "a number of 0..2^64-1", tag)
        span = span_of(data, writable=not sends)
        state = self._state
        # A frame less than to ask in any case: messages are small and many.
        limit_s = state.timeout_s if timeout_s is None else state.limit(timeout_s)
        transfer = Transfer(sends, peer, tag, span.num_bytes)
        return self._calls.enter(
            self._calls.transfer, (state.core, transfer, limit_s, span.address, data)
        )

    def _copied(self, span: Span, data: Buffer, output: Buffer) -> int:
        """Copy what a call reduces in place to its output; return the address of that."""
        if CALLS and (target := span_of(output, "output", True)).address != span.address:
            require_copyable("the copy to output", [span], [target])
        address = copy_to_output(span, output)
        recording = recording_here()
        if recording is not None and address != span.address:
            recording.copy(address, span, data)
        return address

    def _scaled(self, op: Op, span: Span) -> Span:
        require_copyable(f"the products of {op!r}", [span])
        made = scaled(op, span)
        reject_in_capture(f"the products of {op}", "scale the data in place, and use SUM")
        return made

    def _compressed_plans(self, compression: ErrorFeedback | str | None) -> PlanCache:
        """Return the plans with this compression; see on rank 0 whether it pays."""
        state = self._state
        if compression is None:
            wanted = state.compression
        elif isinstance(compression, ErrorFeedback):
            wanted = compression_named(compression.compression)
        else:
            wanted = compression_named(compression)
        if state.rank == 0 and wanted is not Compression.NONE:
            state.gain.look(state.require_engine())
        return state.plans.compressed(wanted)

    def _check_rank(self, name: str, rank: int) -> None:
        n = self._state.world_size
        if type(rank) is int and 0 <= rank < n:
            return  # without a look at numpy's numbers
        if not hasattr(rank, "__index__") or np.ndim(rank) or not 0 <= rank < n:
            raise wrong(name, f"a rank of 0..{n - 1}", rank)

    def _is_root(self, root: int, name: str, blocks: object) -> bool:
        is_root = self._state.rank == root
        if is_root == (blocks is None):
            raise InvalidArgumentError(
                f"{name}: expected {'blocks on the root' if is_root else 'None'} "
                f"(this is rank {self._state.rank}, root is {root}), got {type(blocks).__name__}"
            )
        return is_root
