"""Every collective: checks the arguments and converts them to addresses, counts and a plan.

Each call ends in `submit.py`. Nothing is sent before all arguments of a call have been checked.

A call of an `entering` method goes to the engine without a Python frame if its arguments are plain
memory and valid numbers (`csrc/bindings/calls/call_entry.cc`). The methods below take all others:
wrong arguments, subclasses, read-only memory, objects for `memory/exporters.py`, ops that are not
numbers, compression per call, groups, captures, a closed communicator, HCCL_DEBUG=1.
"""

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, Generic

from hccl_py.calls.call_group import CALLS, require_copyable
from hccl_py.calls.communicator_state import CommunicatorState
from hccl_py.calls.recording import CAPTURES, reject_in_capture
from hccl_py.calls.submit import CheckedCall, Result, Submits, Submitter
from hccl_py.calls.work import Work
from hccl_py.compression import ErrorFeedback, compression_named
from hccl_py.fingerprint import REDUCING, Transfer
from hccl_py.memory.arguments import (
    check_apart,
    check_block,
    check_op,
    check_output,
    naming,
    set_aside,
)
from hccl_py.memory.buffers import READER, blocks_of, run_of, span_of
from hccl_py.memory.element_types import ELEMENT_TYPES, ElementType, Span
from hccl_py.memory.mpi_buffers import is_mpi_in_place
from hccl_py.memory.scaled import scaled
from hccl_py.transport import _core
from hccl_py.transport.arguments import whole_number, wrong
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import Compression, DType, ReduceOp

Buffer = Any
"""A contiguous CPU torch tensor or numpy array, or another object that `buffers.py` can read, also
as mpi4py describes it: `[data, count, MPI.FLOAT]`. MPI.IN_PLACE stands for the other buffer."""
Blocks = Any
"""One Buffer of world_size equal blocks, or a sequence of world_size Buffers of any sizes."""

Op = Any
"""A ReduceOp, or a result of `premul_sum`."""

_BYTE = ELEMENT_TYPES[DType.UINT8]
_SUM = int(ReduceOp.SUM)


class Collectives(Generic[Result]):
    """The collectives of a communicator, all blocking or all in the background.

    Every method takes `timeout_s`; None is the communicator's own.

    All raise InvalidArgumentError for a wrong argument, which leaves the communicator unchanged,
    and CommunicatorError (see `hccl_py.transport.errors`) if the call fails. Buffers of one call
    must not overlap unless stated. An `output` beside `data` may be the same memory; its old values
    are lost even if the call fails.
    """

    # `call_entry.cc` finds an object's entry by this slot.
    __slots__ = ("__dict__", "__weakref__", "entry")

    def __init__(self, state: CommunicatorState, *, blocking: bool) -> None:
        self._state = state
        self._submitter: Submits[Result] = Submitter(state, blocking)
        self._find: Callable[..., _core.Prepared] = state.plans.find
        # None: every call takes the functions below, and so `submit.py`.
        self.entry: _core.CallEntry | None = None
        if not state.recorder.sites.are_noted:
            self.entry = _core.CallEntry(
                state=state.calls,
                rank=state.rank,
                world_size=state.world_size,
                plans=state.plans,
                reader=READER,
                groups=CALLS,
                captures=CAPTURES,
                errors=state.errors,
                work=None if blocking else Work,
                transfer=Transfer,
                byte=_BYTE,
                gain=None if state.compression is Compression.NONE else state.gain,
                oracle=_Oracle(state) if os.environ.get("HCCL_VERIFY") == "1" else None,
            )

    @_core.entering
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
            output: receives the result instead; `data` is then only read.
            compression: `none`, `bf16` or `int8`, or an ErrorFeedback of this tensor; the same on
                all ranks. None: that of the communicator.
        """
        if output is not None and is_mpi_in_place(data):
            data, output = output, None
        source = span_of(data, "data", output is None)
        if not isinstance(op, int):
            target, given = data if output is None else output, self._scaled(op, source)
            return self.all_reduce(
                given, output=target, compression=compression, timeout_s=timeout_s
            )
        target = source if output is None else check_output(source, output)
        wanted = self._compression(compression)
        prepared = self._plan("all_reduce", source.kind, source.count, op, compression=wanted)
        residual = 0
        if isinstance(compression, ErrorFeedback) and prepared.compressed:
            reject_in_capture("what ErrorFeedback keeps", "compress by name, or call it outside")
            residual = compression.address(source.count)
        buffers = output, data, compression if residual else None
        return self._submit(prepared, [source], [target], buffers, timeout_s, residual)

    @_core.entering
    def broadcast(
        self,
        data: Buffer,
        root: int,
        *,
        output: Buffer | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Copy `data` of rank `root` to all ranks' `data`. Any element type.

        `output` receives the copy instead, on the root too; `data` is then read on the root only,
        and other ranks may pass None.
        """
        root = self._rank("root", root)
        is_root = root == self._state.rank
        if output is not None and not is_root:
            data = output
        source = span_of(data, "data", not is_root)
        read, written = ([source], []) if is_root else ([], [source])
        if output is not None and is_root:
            written = [check_output(source, output)]
        prepared = self._plan("broadcast", source.kind, source.count, root=root)
        return self._submit(prepared, read, written, (output, data), timeout_s)

    @_core.entering
    def reduce(
        self,
        data: Buffer,
        root: int,
        op: Op = _SUM,
        *,
        output: Buffer | None = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Reduce `data` over all ranks into the root's; other ranks' `data` is unchanged.

        Args:
            data: same element type and count on all ranks, any shape.
            root: a rank.
            output: receives the result on the root instead, whose `data` is then only read; other
                ranks' `output` is ignored.
        """
        root = self._rank("root", root)
        is_root = root == self._state.rank
        if output is not None and is_mpi_in_place(data):
            data, output = output, None
        source = span_of(data, "data", is_root and output is None)
        if not isinstance(op, int):
            target = output if output is not None or not is_root else data
            return self.reduce(self._scaled(op, source), root, output=target, timeout_s=timeout_s)
        written = [source] if is_root else []
        if output is not None and is_root:
            written = [check_output(source, output)]
        prepared = self._plan("reduce", source.kind, source.count, op, root)
        return self._submit(prepared, [source], written, (output, data), timeout_s)

    @_core.entering
    def barrier(self, *, timeout_s: float | None = None) -> Result:
        """Return once every rank has called it."""
        return self._submit(self._plan("barrier", _BYTE, 1), [], [], None, timeout_s)

    @_core.entering
    def all_gather(
        self, output: Blocks, input: Buffer, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of `output`, on all ranks.

        Args:
            output: world_size blocks; block i as long as rank i's input.
            input: any element type; may be this rank's block of `output` itself.
        """
        state = self._state
        given = () if is_mpi_in_place(input) else (span_of(input, "input"),)
        targets = blocks_of(output, "output", state.world_size, writable=True)
        (source,) = given or (targets[state.rank],)
        input = input if given else source
        check_block("output", targets[state.rank], "input", source, state.rank)
        self._check_apart((output, input), targets, [source])
        # Blocks may be uneven, but their total length is equal on all ranks.
        even = all(block.count == source.count for block in targets)
        total = sum(block.count for block in targets)
        prepared = self._plan("all_gather", source.kind, total, even=even)
        return self._submit(prepared, [source], targets, (output, input), timeout_s)

    @_core.entering
    def reduce_scatter(
        self, output: Buffer, input: Blocks, op: Op = _SUM, *, timeout_s: float | None = None
    ) -> Result:
        """Reduce block i of all ranks' `input` into the `output` of rank i.

        Args:
            output: as long as one block; may be this rank's block of `input` itself.
            input: world_size blocks of one length; never written otherwise. MPI.IN_PLACE: `output`
                has the blocks, and gets the result in block 0.
        """
        n, kept = self._state.world_size, output
        if is_mpi_in_place(input):
            output, input, kept = self._blocks_of_output(output)
        if not isinstance(op, int):
            sources = blocks_of(input, "input", n)
            products = [self._scaled(op, block) for block in sources]
            self._check_apart((output, input), [span_of(output, "output", True)], sources)
            input, op = products, _SUM
        target = span_of(output, "output", True)
        sources = blocks_of(input, "input", n)
        for rank, block in enumerate(sources):
            check_block("input", block, "output", target, rank)
        self._check_apart((output, input), [target], sources)
        wanted = self._compression(None)
        count = target.count * n
        prepared = self._plan("reduce_scatter", target.kind, count, op, compression=wanted)
        return self._submit(prepared, sources, [target], (output, input, kept), timeout_s)

    @_core.entering
    def all_to_all(
        self, output: Blocks, input: Blocks, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of `input` to rank i, and receive block i of `output` from it.

        Rank a's block for b must be as long as b's block from a; blocks may be uneven.

        Args:
            output: world_size blocks; may be `input` itself or share its blocks, which are then
                copied before they are sent.
            input: world_size blocks.
        """
        state = self._state
        n = state.world_size
        if is_mpi_in_place(input):
            input = output
        sources = blocks_of(input, "input", n)
        targets = blocks_of(output, "output", n, writable=True)
        check_block("output", targets[state.rank], "input", sources[state.rank], state.rank)
        # The copies must live as long as the call.
        kept: object = input
        is_in_place = run_of(sources) == run_of(targets) is not None
        self._check_apart((output, input), targets, () if is_in_place else sources)
        pairs = zip(sources, targets, strict=True)
        if is_in_place or any(one.meets(other) for one, other in pairs):
            reject_in_capture("all_to_all in place", "pass an output of its own")
            require_copyable("the copy of input", sources)
            kept, sources = set_aside(sources)
        # A list with equal blocks here may be uneven elsewhere; one buffer has equal blocks on
        # every rank.
        even = not isinstance(output, (list, tuple)) and not isinstance(input, (list, tuple))
        total = n * sources[0].count if even else 0
        prepared = self._plan("all_to_all", sources[0].kind, total, even=even)
        return self._submit(prepared, sources, targets, (output, kept), timeout_s)

    @_core.entering
    def gather(
        self, output: Blocks | None, input: Buffer, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Collect every rank's `input` in block `rank` of the root's `output`; others pass None.

        The root's `input` may be its block of `output` itself.
        """
        root = self._rank("root", root)
        targets: list[Span] = []
        is_root = self._is_root(root, "output", output)
        if is_root:
            targets = blocks_of(output, "output", self._state.world_size, writable=True)
            input = targets[root] if is_mpi_in_place(input) else input
        source = span_of(input, "input")
        if is_root:
            check_block("output", targets[root], "input", source, root)
            self._check_apart((output, input), targets, [source])
        prepared = self._plan("gather", source.kind, 0, root=root)
        return self._submit(prepared, [source], targets, (output, input), timeout_s)

    @_core.entering
    def scatter(
        self, output: Buffer, input: Blocks | None, root: int, *, timeout_s: float | None = None
    ) -> Result:
        """Send block i of the root's `input` to `output` of rank i; others pass None as input.

        The root's `output` may be its block of `input` itself.
        """
        root = self._rank("root", root)
        sources: list[Span] = []
        is_root = self._is_root(root, "input", input)
        if is_root:
            sources = blocks_of(input, "input", self._state.world_size)
            output = sources[root] if is_mpi_in_place(output) else output
        target = span_of(output, "output", writable=True)
        if is_root:
            check_block("input", sources[root], "output", target, root)
            self._check_apart((output, input), [target], sources)
        prepared = self._plan("scatter", target.kind, 0, root=root)
        return self._submit(prepared, sources, [target], (output, input), timeout_s)

    @_core.entering
    def send(
        self, data: Buffer, peer: int, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Send `data` to a recv of `peer`, any rank, with the same tag (0 to 2^64 - 1) and size."""
        span = span_of(data)
        transfer = self._transfer(True, self._rank("peer", peer), tag, span)
        return self._submit(transfer, [span], [], data, timeout_s)

    @_core.entering
    def recv(
        self, data: Buffer, peer: int | None, tag: int = 0, *, timeout_s: float | None = None
    ) -> Result:
        """Receive into `data` from `peer`, or, if that is None, from the first rank that sends."""
        if peer is not None:
            peer = self._rank("peer", peer)
        span = span_of(data, writable=True)
        transfer = self._transfer(False, peer, tag, span)
        return self._submit(transfer, [], [span], data, timeout_s)

    def _transfer(self, sends: bool, peer: int | None, tag: int, span: Span) -> Transfer:
        if not isinstance(tag, int) or not 0 <= tag < 1 << 64:
            raise wrong("tag", "a number of 0..2^64-1", tag)
        return Transfer(sends, peer, tag, span.num_bytes)

    def _blocks_of_output(self, output: Blocks) -> tuple[Span, list[Span], object]:
        """Return block 0 for the result, the blocks to reduce, and what keeps their memory."""
        reject_in_capture("reduce_scatter of MPI.IN_PLACE", "pass an output of its own")
        first, *others = blocks_of(output, "output", self._state.world_size, writable=True)
        if self._state.rank == 0:
            return first, [first, *others], output
        # The result would replace what rank 0 has yet to read.
        require_copyable("the copy of block 0", [first])
        holder, copies = set_aside([first])
        return first, [*copies, *others], (output, holder)

    def _check_apart(
        self, both: tuple[Any, Any], outputs: Sequence[Span], inputs: Sequence[Span]
    ) -> None:
        names = naming("output", both[0]), naming("input", both[1])
        check_apart(outputs, inputs, self._state.rank, names)

    def _plan(
        self,
        collective: str,
        kind: ElementType,
        count: int,
        op: int = _SUM,
        root: int | None = None,
        *,
        even: bool = True,
        compression: Compression | None = None,
    ) -> _core.Prepared:
        if collective in REDUCING:
            check_op(op, kind)
        wanted = self._state.compression if compression is None else compression
        return self._find(collective, kind, op, count, root, even, wanted)

    def _submit(
        self,
        call: _core.Prepared | Transfer,
        read: Sequence[Span],
        written: Sequence[Span],
        buffers: object,
        timeout_s: float | None,
        residual: int = 0,
    ) -> Result:
        if isinstance(buffers, tuple):  # the caller may change a list while the call runs
            buffers = tuple(tuple(one) if isinstance(one, list) else one for one in buffers)
        limit_s = self._state.limit(timeout_s)
        checked = CheckedCall(call, limit_s, read, written, buffers, residual)
        return self._submitter.submit(checked)

    def _scaled(self, op: Op, span: Span) -> Span:
        require_copyable(f"the products of {op!r}", [span])
        made = scaled(op, span)
        reject_in_capture(f"the products of {op}", "scale the data in place, and use SUM")
        return made

    def _compression(self, given: ErrorFeedback | str | None) -> Compression:
        """Return the compression of a call; rank 0 also checks whether it pays."""
        state = self._state
        if given is None and not state.gain.is_open:
            return state.compression
        name = given.compression if isinstance(given, ErrorFeedback) else given
        wanted = state.compression if name is None else compression_named(name)
        if state.rank == 0 and wanted is not Compression.NONE:
            state.gain.check(state.require_engine())
        return state.plans.checked(wanted)

    def _rank(self, name: str, rank: int) -> int:
        n = self._state.world_size
        return whole_number(name, rank, f"a rank of 0..{n - 1}", range(n))

    def _is_root(self, root: int, name: str, blocks: object) -> bool:
        is_root = self._state.rank == root
        if is_root == (blocks is None):
            raise InvalidArgumentError(
                f"{name}: expected {'blocks on the root' if is_root else 'None'} "
                f"(this is rank {self._state.rank}, root is {root}), got {type(blocks).__name__}"
            )
        return is_root


_ARGUMENTS = "output", "input", "op", "root", "peer", "tag", "timeout_s"
_NONE = inspect.Parameter.empty


class _Oracle(Collectives[_core.UnsubmittedCall]):
    """Makes calls by the methods above without submitting them.

    With HCCL_VERIFY=1 C++ compares each of its calls with the result.
    """

    def __init__(self, state: CommunicatorState) -> None:
        self._state, self._submitter = state, self
        self._find = state.plans.write
        self.entry = None

    def __call__(self, collective: str, values: Sequence[Any]) -> _core.UnsubmittedCall:
        """Make a call from the values of _ARGUMENTS; None: the method's default."""
        method = getattr(Collectives, collective).__wrapped__
        parameters = inspect.signature(method).parameters
        given = dict(zip(_ARGUMENTS, values, strict=True))
        if "data" in parameters:
            given["data"] = given.pop("input")
        made: _core.UnsubmittedCall = method(
            self,
            **{
                name: given[name]
                for name, parameter in parameters.items()
                if given.get(name) is not None or (name in given and parameter.default is _NONE)
            },
        )
        return made

    def submit(self, checked: CheckedCall) -> _core.UnsubmittedCall:
        """Return the call without submitting it."""
        return checked.made(self._state.require_engine())
