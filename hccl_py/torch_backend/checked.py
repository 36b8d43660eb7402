"""The slow path of collectives: every argument that torch and its users pass is checked here.

A method checks torch's arguments (`arguments.py`) and submits the communicator's method of the same
meaning (`submit.py`). Names and signatures are torch's: `dist.all_reduce` calls `allreduce`. Each
method takes its options or, as older callers do, the bare root, operation or timeout (`older`).
Where torch has two names for an argument (`tensors`, `tensor`), both work. Ranks are the group's.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
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
)

from hccl_py.torch_backend.arguments import Call, reduce_op
from hccl_py.torch_backend.sparse import all_reduce_sparse, is_sparse
from hccl_py.torch_backend.state import GroupState
from hccl_py.torch_backend.submit import Submitter
from hccl_py.torch_backend.types import TensorLists, Tensors, read_options

Data = Tensors | None
Lists = TensorLists | None


class CheckedCalls:
    """The collectives of one process group, for all arguments."""

    def __init__(self, group: object, state: GroupState, submitter: Submitter) -> None:
        """Serve `group`, which owns this object."""
        self._group = weakref.ref(group)
        self._state = state
        self._submitter = submitter
        self._rank = state.rank
        self._world_size = state.world_size

    def _call(self, name: str) -> Call:
        state = self._state
        return Call(name, state.read_backends(self._group()), state.backend_config)

    def allreduce(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Reduce in place over all ranks."""
        call = self._call("allreduce")
        opts = read_options(AllreduceOptions, opts, *older, **named)
        only = call.only("tensors", tensors, tensor)
        if is_sparse(only):
            return all_reduce_sparse(self._state, self._submitter, call, only, opts)
        return self._all_reduce(call, [only], opts)

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        """Reduce each of `tensors` in place over all ranks."""
        options = read_options(AllreduceCoalescedOptions, opts)
        return self._all_reduce(self._call("allreduce_coalesced"), tensors, options)

    def _all_reduce(self, call: Call, tensors: Sequence[Tensor], opts: Any) -> dist.Work:
        ours, factor = reduce_op(call, opts)
        buffers = [call.accumulator("tensors", tensor, factor) for tensor in tensors]
        return self._submitter.submit(
            call, opts, "all_reduce", *((buffer, ours) for buffer in buffers)
        )

    def reduce(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Reduce over all ranks into the root's tensor; the others keep their values."""
        call = self._call("reduce")
        opts = read_options(ReduceOptions, opts, *older, **named)
        ours, factor = reduce_op(call, opts)
        root = call.rank("dst", opts.rootRank, self._world_size)
        only = call.only("tensors", tensors, tensor)
        if root == self._rank:
            buffer = call.accumulator("tensor", only, factor)
        else:
            buffer = call.contribution("tensor", only, factor)
            call.results.append(only)
        return self._submitter.submit(call, opts, "reduce", (buffer, root, ours))

    def reduce_scatter(
        self,
        output_tensors: Data = None,
        input_tensors: Lists = None,
        opts: Any = None,
        *older: Any,
        output: Data = None,
        input: Lists = None,
        **named: Any,
    ) -> dist.Work:
        """Reduce a list of blocks, one per rank, and keep this rank's."""
        call = self._call("reduce_scatter")
        opts = read_options(ReduceScatterOptions, opts, *older, **named)
        ours, factor = reduce_op(call, opts)
        target = call.only("output", output_tensors, output)
        lists = input_tensors if input is None else input
        blocks = call.blocks("input_list", lists, self._world_size)
        buffer = call.accumulator("output", target)
        inputs = [call.contribution("input_list", block, factor, like=target) for block in blocks]
        call.same_size("output", target, inputs[self._rank].numel(), "this rank's block")
        if len({block.numel() for block in blocks}) == 1 or call.fake:
            return self._submitter.submit(call, opts, "reduce_scatter", (buffer, inputs, ours))
        # Blocks of several sizes, which all ranks see: one reduce per rank.
        inputs[self._rank] = own = inputs[self._rank].clone()
        call.copies.insert(0, (buffer, own))
        reduces = ((block, root, ours) for root, block in enumerate(inputs))
        return self._submitter.submit(call, opts, "reduce", *reduces)

    def reduce_scatter_single(
        self,
        output: Data = None,
        input: Data = None,
        opts: Any = None,
        outputTensor: Data = None,  # noqa: N803
        inputTensor: Data = None,  # noqa: N803
    ) -> dist.Work:
        """Reduce one tensor of equal blocks and keep this rank's."""
        call = self._call("reduce_scatter_single")
        target = call.only("output", output, outputTensor)
        source = call.only("input", input, inputTensor)
        return self._reduce_scatter_single(call, [target], [source], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do `reduce_scatter_single` for each pair."""
        call = self._call("reduce_scatter_single_coalesced")
        return self._reduce_scatter_single(call, outputs, inputs, opts)

    def _reduce_scatter_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> dist.Work:
        opts = read_options(ReduceScatterOptions, opts)
        ours, factor = reduce_op(call, opts)
        call.same_length("outputs", outputs, "inputs", inputs)
        arguments = []
        for output, source in zip(outputs, inputs, strict=True):
            buffer = call.accumulator("output", output)
            blocks = call.contribution("input", source, factor, like=output)
            count = output.numel() * self._world_size
            call.same_size("input", source, count, f"{self._world_size} times `output`")
            arguments.append((buffer, blocks, ours))
        return self._submitter.submit(call, opts, "reduce_scatter", *arguments)

    def broadcast(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Copy the root's tensor to all ranks."""
        call = self._call("broadcast")
        opts = read_options(BroadcastOptions, opts, *older, **named)
        root = call.rank("src", opts.rootRank, self._world_size)
        only = call.only("tensors", tensors, tensor)
        if root == self._rank:
            buffer = call.input("tensor", only)
            call.results.append(only)
        else:
            buffer = call.output("tensor", only)
        return self._submitter.submit(call, opts, "broadcast", (buffer, root))

    def allgather(
        self,
        output_tensors: TensorLists,
        input_tensors: Data = None,
        opts: Any = None,
        *older: Any,
        input_tensor: Data = None,
        **named: Any,
    ) -> dist.Work:
        """Collect every rank's tensor in a list of tensors."""
        call = self._call("allgather")
        opts = read_options(AllgatherOptions, opts, *older, **named)
        blocks = call.blocks("tensor_list", output_tensors, self._world_size)
        tensor = call.only("tensor", input_tensors, input_tensor)
        arguments = self._gather_blocks(call, blocks, tensor)
        return self._submitter.submit(call, opts, "all_gather", arguments)

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Do `allgather` for each of `input_list`; entry r of the outputs is rank r's list."""
        call = self._call("allgather_coalesced")
        opts = read_options(AllgatherOptions, opts)
        lists = call.lists("output_tensor_lists", output_lists, self._world_size)
        for tensors in lists:
            call.same_length("output_tensor_lists", tensors, "input_tensor_list", input_list)
        arguments = [
            self._gather_blocks(call, [tensors[index] for tensors in lists], tensor)
            for index, tensor in enumerate(input_list)
        ]
        return self._submitter.submit(call, opts, "all_gather", *arguments)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one, concatenated or stacked."""
        return self._all_gather_single(self._call("all_gather_single"), [output], [input], opts)

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do `all_gather_single` for each pair."""
        call = self._call("all_gather_single_coalesced")
        return self._all_gather_single(call, outputs, inputs, opts)

    def _all_gather_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any
    ) -> dist.Work:
        opts = read_options(AllgatherOptions, opts)
        call.same_length("outputs", outputs, "inputs", inputs)
        arguments = []
        for output, source in zip(outputs, inputs, strict=True):
            buffer = call.input("input", source)
            target = call.output("output", output, like=source)
            count = source.numel() * self._world_size
            call.same_size("output", output, count, f"{self._world_size} times `input`")
            arguments.append((target, buffer))
        return self._submitter.submit(call, opts, "all_gather", *arguments)

    def gather(
        self,
        output_tensors: TensorLists,
        input_tensors: Data = None,
        opts: Any = None,
        *older: Any,
        input_tensor: Data = None,
        **named: Any,
    ) -> dist.Work:
        """Collect every rank's tensor in a list on the root; the others pass an empty one."""
        call = self._call("gather")
        opts = read_options(GatherOptions, opts, *older, **named)
        root = call.rank("dst", opts.rootRank, self._world_size)
        tensor = call.only("tensor", input_tensors, input_tensor)
        if root == self._rank:
            blocks = call.blocks("gather_list", output_tensors, self._world_size)
            outputs, source = self._gather_blocks(call, blocks, tensor)
            return self._submitter.submit(call, opts, "gather", (outputs, source, root))
        buffer = call.input("tensor", tensor)
        call.no_blocks("gather_list", output_tensors, root)
        return self._submitter.submit(call, opts, "gather", (None, buffer, root))

    def scatter(
        self,
        output_tensors: Data = None,
        input_tensors: TensorLists = (),
        opts: Any = None,
        *older: Any,
        output_tensor: Data = None,
        **named: Any,
    ) -> dist.Work:
        """Hand each rank its block of the root's list; the others pass an empty one."""
        call = self._call("scatter")
        opts = read_options(ScatterOptions, opts, *older, **named)
        root = call.rank("src", opts.rootRank, self._world_size)
        tensor = call.only("tensor", output_tensors, output_tensor)
        target = call.output("tensor", tensor)
        inputs = None
        if root == self._rank:
            blocks = call.blocks("scatter_list", input_tensors, self._world_size)
            inputs = [call.input("scatter_list", block, like=tensor) for block in blocks]
            call.same_size("tensor", tensor, inputs[root].numel(), "this rank's block")
        else:
            call.no_blocks("scatter_list", input_tensors, root)
        return self._submitter.submit(call, opts, "scatter", (target, inputs, root))

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> dist.Work:
        """Send block i to rank i and receive block i from it; blocks may differ in size."""
        call = self._call("alltoall")
        opts = read_options(AllToAllOptions, opts, *older, **named)
        sources = call.blocks("input_tensor_list", input_tensors, self._world_size)
        targets = call.blocks("output_tensor_list", output_tensors, self._world_size)
        buffers = [call.input("input_tensor_list", block, like=sources[0]) for block in sources]
        blocks = [call.output("output_tensor_list", block, like=sources[0]) for block in targets]
        own = sources[self._rank].numel()
        call.same_size("output_tensor_list", targets[self._rank], own, "this rank's own block")
        return self._submitter.submit(call, opts, "all_to_all", (blocks, buffers))

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> dist.Work:
        """Send rows of `input` to each rank in turn; empty split sizes mean equal parts."""
        call = self._call("all_to_all_single")
        opts = read_options(AllToAllOptions, opts, *older, **named)
        source = call.input("input", input)
        target = call.output("output", output, like=input)
        inputs = call.rows("input", source, input_split_sizes, self._world_size)
        outputs = call.rows("output", target, output_split_sizes, self._world_size)
        own = inputs[self._rank].numel()
        call.same_size("output", outputs[self._rank], own, "in the part for this rank itself")
        if len(input_split_sizes) or len(output_split_sizes):
            return self._submitter.submit(call, opts, "all_to_all", (outputs, inputs))
        return self._submitter.submit(call, opts, "all_to_all", (target, source))

    def _gather_blocks(
        self, call: Call, blocks: Sequence[Tensor], tensor: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        source = call.input("tensor", tensor)
        targets = [call.output("tensor_list", block, like=tensor) for block in blocks]
        own = f"as `tensor` for rank {self._rank}"
        call.same_size("tensor_list", blocks[self._rank], tensor.numel(), own)
        return targets, source

    def barrier(self, opts: Any = None, *older: Any, **named: Any) -> dist.Work:
        """Block until every rank came."""
        options = read_options(BarrierOptions, opts, *older, **named)
        return self._submitter.submit(self._call("barrier"), options, "barrier", ())

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Send to a rank that receives with the same tag."""
        call = self._call("send")
        peer = call.rank("dst", dstRank, self._world_size)
        buffer = call.input("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "send", buffer, peer, tag)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Receive from a rank that sends with the same tag."""
        call = self._call("recv")
        peer = call.rank("src", srcRank, self._world_size)
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "recv", buffer, peer, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Receive from the first rank that sends with the tag; `source_rank` returns it."""
        call = self._call("recv_anysource")
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "recv", buffer, None, tag)
