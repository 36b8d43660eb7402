"""The collectives of torch.distributed: `dist.all_reduce` calls `allreduce`, and so on.

`groups/` makes torch's two classes of them. Ranks are the group's. A Python frame costs as much as
a small call in the engine, so calls on plain tensors go to the communicator from C++ (`_plain`,
`csrc/bindings/calls/torch_calls.cc`). The methods take others: invalid arguments, tensor
subclasses, timeouts per call, torch's instruments and older overloads. A method checks torch's
arguments (`checks/`) and submits the communicator's method of the same meaning (`submit.py`).

Older callers pass the root, operation or timeout instead of options (`older`). If torch has two
names for an argument (`tensors`, `tensor`), both work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Work,
)
from torch.autograd import profiler
from torch.utils import _python_dispatch as modes

from hccl_py.torch_backend.checks.arguments import (
    OPS_BY_HASH,
    UNSET_TIMEOUT,
    Call,
    Tensors,
    read_options,
)
from hccl_py.torch_backend.checks.overlap import require_apart
from hccl_py.torch_backend.checks.tensor_kinds import PLAIN_TYPES
from hccl_py.torch_backend.groups.identity import GroupIdentity
from hccl_py.torch_backend.sparse import all_reduce_sparse
from hccl_py.torch_backend.window import TorchWindow
from hccl_py.torch_backend.work import FINISHED, raise_failure
from hccl_py.transport import _core
from hccl_py.transport.errors import HcclError
from hccl_py.transport.types import ReduceOp

Method = TypeVar("Method", bound=Callable[..., Work])


class PlainFacts(NamedTuple):
    """The facts by which `torch_calls.cc` recognises a plain call.

    Attributes:
        types: classes of plain tensors.
        ops: hccl-py's ReduceOps by the hash of torch's.
        unset_timeout: value in options that means the group's timeout.
        finished: the Work of blocking calls.
        error: the class of the communicator's errors.
        raise_failure: raises torch's error for one; returns if an argument was wrong.
        instruments: a module's names and one of them, true while an instrument needs each call.
    """

    types: frozenset[type]
    ops: dict[int, ReduceOp]
    unset_timeout: timedelta
    finished: Work
    error: type[Exception]
    raise_failure: Callable[[HcclError], None]
    instruments: tuple[tuple[dict[str, Any], str], ...]


_FACTS = PlainFacts(
    *(frozenset(PLAIN_TYPES), OPS_BY_HASH, UNSET_TIMEOUT, FINISHED, HcclError, raise_failure),
    instruments=(
        (vars(profiler), "_is_profiler_enabled"),
        (vars(modes), "_is_in_non_infra_torch_dispatch_mode"),
    ),
)


def _plain(
    method: str,
    forms: str,
    options: type | None = None,
    *fields: str,
    when: Callable[..., bool] | None = None,
) -> Callable[[Method], Method]:
    """Route calls on plain host tensors to the communicator without a Python frame.

    Args:
        method: the communicator's method.
        forms: of each argument that is an array: "t", a tensor; "l", a list of one tensor; "b", a
            list of one list of tensors.
        options: the type of the last argument; None: a send or a receive.
        fields: the options that the communicator's method takes after the arrays.
        when: one more condition on the arguments before the options.
    """
    return lambda function: _core.plain_call(function, _FACTS, method, forms, options, fields, when)


def _has_equal_parts(
    group: TorchCollectives, output: Tensor, input: Tensor, received: object, sent: object
) -> bool:
    """Return whether all_to_all_single has no split sizes, and equal rows for each rank."""
    return (
        (type(received) is list and type(sent) is list and not (received or sent))
        and (output.dim() > 0 and input.dim() > 0)
        and not (output.size(0) % group._world_size or input.size(0) % group._world_size)
    )


class TorchCollectives(GroupIdentity):
    """The methods of torch's ProcessGroup and Backend, which have the same names."""

    def _call(self, name: str, kind: Any = None, *options: Any, **named: Any) -> Call:
        opts = kind and read_options(kind, *options, **named)
        return Call(name, opts, self._world_size, self.backends)

    @_plain("all_reduce", "l", AllreduceOptions, "reduceOp")
    def allreduce(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Work:
        """Reduce in place over all ranks."""
        tensors = named.pop("tensor", tensors)
        call = self._call("allreduce", AllreduceOptions, opts, *older, **named)
        only = call.only("tensors", tensors)
        if isinstance(only, Tensor) and only.layout is torch.sparse_coo:
            return all_reduce_sparse(self, call, only)
        return self._all_reduce(call, [only])

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> Work:
        """Reduce each of `tensors` in place over all ranks."""
        call = self._call("allreduce_coalesced", AllreduceCoalescedOptions, opts)
        return self._all_reduce(call, tensors)

    def _all_reduce(self, call: Call, tensors: Sequence[Tensor]) -> Work:
        op = call.reduce_op()
        listed = call.listed("tensors", tensors)
        arguments = [(call.in_out("tensors", tensor), op) for tensor in listed]
        return self.submit(call, "all_reduce", *arguments)

    @_plain("reduce", "l", ReduceOptions, "rootRank", "reduceOp")
    def reduce(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Work:
        """Reduce over all ranks into the root's tensor; the others keep their values."""
        tensors = named.pop("tensor", tensors)
        call = self._call("reduce", ReduceOptions, opts, *older, **named)
        op, root = call.reduce_op(), call.rank("dst", call.opts.rootRank)
        only = call.only("tensors", tensors)
        if root == self._rank:
            buffer = call.in_out("tensor", only)
        else:
            buffer = call.input("tensor", only)
            call.results.append(only)
        return self.submit(call, "reduce", (buffer, root, op))

    def reduce_scatter(
        self, output_tensors: Any = None, input_tensors: Any = None, *options: Any, **named: Any
    ) -> Work:
        """Reduce a list of blocks, one per rank, and keep this rank's."""
        output_tensors = named.pop("output", output_tensors)
        input_tensors = named.pop("input", input_tensors)
        call = self._call("reduce_scatter", ReduceScatterOptions, *options, **named)
        op = call.reduce_op()
        target = call.only("output", output_tensors)
        blocks = call.blocks("input_list", input_tensors)
        buffer = call.output("output", target)
        inputs = [call.input("input_list", block, like=target) for block in blocks]
        call.same_size("output", target, inputs[self._rank].numel(), "this rank's block")
        if len({block.numel() for block in blocks}) == 1 or call.fake:
            return self.submit(call, "reduce_scatter", (buffer, inputs, op))
        require_apart(call, "reduce_scatter", [(buffer, inputs, op)], self._rank, self._world_size)
        # Blocks of several sizes, known to all ranks: one reduce per rank.
        inputs[self._rank] = own = inputs[self._rank].clone()
        call.copies.insert(0, (buffer, own))
        reduces = ((block, root, op) for root, block in enumerate(inputs))
        return self.submit(call, "reduce", *reduces)

    @_plain("reduce_scatter", "tt", ReduceScatterOptions, "reduceOp")
    def reduce_scatter_single(
        self, output: Any = None, input: Any = None, opts: Any = None, **named: Any
    ) -> Work:
        """Reduce one tensor of equal blocks and keep this rank's."""
        output, input = named.pop("outputTensor", output), named.pop("inputTensor", input)
        call = self._call("reduce_scatter_single", ReduceScatterOptions, opts)
        pair = [call.only("output", output)], [call.only("input", input)]
        return self._reduce_scatter_single(call, *pair)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Do `reduce_scatter_single` for each pair."""
        call = self._call("reduce_scatter_single_coalesced", ReduceScatterOptions, opts)
        return self._reduce_scatter_single(call, outputs, inputs)

    def _reduce_scatter_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Work:
        op, n = call.reduce_op(), self._world_size
        arguments = []
        for output, source in call.pairs("outputs", outputs, "inputs", inputs):
            buffer = call.output("output", output)
            blocks = call.input("input", source, like=output)
            call.same_size("input", source, output.numel() * n, f"{n} times `output`")
            arguments.append((buffer, blocks, op))
        return self.submit(call, "reduce_scatter", *arguments)

    @_plain("broadcast", "l", BroadcastOptions, "rootRank")
    def broadcast(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Work:
        """Copy the root's tensor to all ranks."""
        tensors = named.pop("tensor", tensors)
        call = self._call("broadcast", BroadcastOptions, opts, *older, **named)
        root = call.rank("src", call.opts.rootRank)
        only = call.only("tensors", tensors)
        if root == self._rank:
            buffer = call.input("tensor", only)
            call.results.append(only)
        else:
            buffer = call.output("tensor", only)
        return self.submit(call, "broadcast", (buffer, root))

    @_plain("all_gather", "bl", AllgatherOptions)
    def allgather(
        self,
        output_tensors: Any,
        input_tensors: Any = None,
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> Work:
        """Collect every rank's tensor in a list of tensors."""
        input_tensors = named.pop("input_tensor", input_tensors)
        call = self._call("allgather", AllgatherOptions, opts, *older, **named)
        blocks = call.blocks("tensor_list", output_tensors)
        tensor = call.only("tensor", input_tensors)
        return self.submit(call, "all_gather", self._gathered(call, blocks, tensor))

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Work:
        """Do `allgather` for each of `input_list`; entry r of the outputs is rank r's list."""
        call = self._call("allgather_coalesced", AllgatherOptions, opts)
        names = "output_tensor_lists", "input_tensor_list"
        call.one_per_rank(names[0], output_lists, "lists")
        by_rank = [call.pairs(names[0], tensors, names[1], input_list) for tensors in output_lists]
        arguments = [
            self._gathered(call, [output for output, _ in pairs], pairs[0][1])
            for pairs in zip(*by_rank, strict=True)
        ]
        return self.submit(call, "all_gather", *arguments)

    def _gathered(
        self, call: Call, blocks: Sequence[Tensor], tensor: Tensor, name: str = "tensor_list"
    ) -> tuple[list[Tensor], Tensor]:
        source = call.input("tensor", tensor)
        targets = [call.output(name, block, like=tensor) for block in blocks]
        own = f"as `tensor` for rank {self._rank}"
        call.same_size(name, blocks[self._rank], tensor.numel(), own)
        return targets, source

    @_plain("all_gather", "tt", AllgatherOptions)
    def all_gather_single(self, output: Any = None, input: Any = None, opts: Any = None) -> Work:
        """Collect every rank's tensor in one, concatenated or stacked."""
        call = self._call("all_gather_single", AllgatherOptions, opts)
        return self._all_gather_single(call, [output], [input])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> Work:
        """Do `all_gather_single` for each pair."""
        call = self._call("all_gather_single_coalesced", AllgatherOptions, opts)
        return self._all_gather_single(call, outputs, inputs)

    def _all_gather_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Work:
        n = self._world_size
        arguments = []
        for output, source in call.pairs("outputs", outputs, "inputs", inputs):
            buffer = call.input("input", source)
            arguments.append((call.output("output", output, like=source), buffer))
            call.same_size("output", output, source.numel() * n, f"{n} times `input`")
        return self.submit(call, "all_gather", *arguments)

    def gather(
        self, output_tensors: Any, input_tensors: Any = None, *options: Any, **named: Any
    ) -> Work:
        """Collect every rank's tensor in a list on the root; the others pass an empty one."""
        input_tensors = named.pop("input_tensor", input_tensors)
        call = self._call("gather", GatherOptions, *options, **named)
        root = call.rank("dst", call.opts.rootRank)
        tensor = call.only("tensor", input_tensors)
        if root == self._rank:
            blocks = call.blocks("gather_list", output_tensors)
            arguments = (*self._gathered(call, blocks, tensor, "gather_list"), root)
            return self.submit(call, "gather", arguments)
        buffer = call.input("tensor", tensor)
        call.no_blocks("gather_list", output_tensors, root)
        return self.submit(call, "gather", (None, buffer, root))

    def gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Collect every rank's tensor in one on the root, which alone uses `output`."""
        call = self._call("gather_single", GatherOptions, opts)
        root = call.rank("dst", call.opts.rootRank)
        source = call.input("input", call.only("input", input))
        if root != self._rank:
            return self.submit(call, "gather", (None, source, root))
        target = call.output("output", call.only("output", output), like=source)
        n = self._world_size
        call.same_size("output", output, source.numel() * n, f"{n} times `input`")
        blocks = list(target.detach().view(-1).tensor_split(n))
        return self.submit(call, "gather", (blocks, source, root))

    def scatter(
        self, output_tensors: Any = None, input_tensors: Any = (), *options: Any, **named: Any
    ) -> Work:
        """Send each rank its block of the root's list; the others pass an empty one."""
        output_tensors = named.pop("output_tensor", output_tensors)
        call = self._call("scatter", ScatterOptions, *options, **named)
        root = call.rank("src", call.opts.rootRank)
        tensor = call.only("tensor", output_tensors)
        target = call.output("tensor", tensor)
        inputs = None
        if root == self._rank:
            blocks = call.blocks("scatter_list", input_tensors)
            inputs = [call.input("scatter_list", block, like=tensor) for block in blocks]
            call.same_size("tensor", tensor, inputs[root].numel(), "this rank's block")
        else:
            call.no_blocks("scatter_list", input_tensors, root)
        return self.submit(call, "scatter", (target, inputs, root))

    def alltoall(
        self, output_tensors: Any, input_tensors: Any, *options: Any, **named: Any
    ) -> Work:
        """Send block i to rank i and receive block i from it; blocks may differ in size."""
        call = self._call("alltoall", AllToAllOptions, *options, **named)
        sources = call.blocks("input_tensor_list", input_tensors)
        targets = call.blocks("output_tensor_list", output_tensors)
        buffers = [call.input("input_tensor_list", block, like=sources[0]) for block in sources]
        blocks = [call.output("output_tensor_list", block, like=sources[0]) for block in targets]
        own = sources[self._rank].numel()
        call.same_size("output_tensor_list", targets[self._rank], own, "this rank's own block")
        return self.submit(call, "all_to_all", (blocks, buffers))

    @_plain("all_to_all", "tt", AllToAllOptions, when=_has_equal_parts)
    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> Work:
        """Send rows of `input` to each rank in turn; empty split sizes mean equal parts."""
        call = self._call("all_to_all_single", AllToAllOptions, opts, *older, **named)
        sent = call.sizes("input_split_sizes", input_split_sizes)
        received = call.sizes("output_split_sizes", output_split_sizes)
        source = call.input("input", input)
        target = call.output("output", output, like=input)
        inputs, outputs = call.rows("input", source, sent), call.rows("output", target, received)
        own = inputs[self._rank].numel()
        call.same_size("output", outputs[self._rank], own, "in the part for this rank itself")
        if sent or received:
            return self.submit(call, "all_to_all", (outputs, inputs))
        return self.submit(call, "all_to_all", (target, source))

    @_plain("barrier", "", BarrierOptions)
    def barrier(self, opts: Any = None, *older: Any, **named: Any) -> Work:
        """Block until every rank has called it."""
        call = self._call("barrier", BarrierOptions, opts, *older, **named)
        return self.submit(call, "barrier", ())

    @_plain("send", "l")
    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Send to a rank that receives with the same tag."""
        call = self._call("send")
        peer = call.rank("dst", dstRank)
        buffer = call.input("tensor", call.only("tensors", tensors))
        return self.submit(call, "send", (buffer, peer, tag))

    @_plain("recv", "l")
    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Receive from a rank that sends with the same tag."""
        call = self._call("recv")
        peer = call.rank("src", srcRank)
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self.submit(call, "recv", (buffer, peer, tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> Work:
        """Receive from the first rank that sends with the tag; `source_rank` returns it."""
        call = self._call("recv_anysource")
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self.submit(call, "recv", (buffer, None, tag))

    supports_window = True

    def new_window(self, tensor: Tensor | None = None) -> TorchWindow:
        """Expose a tensor to the other ranks, which put into it and signal; all ranks call it."""
        return TorchWindow(self, tensor)

    # The names of older torch versions.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    gather_into_tensor = gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
