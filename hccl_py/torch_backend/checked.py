"""The slow path of collectives: every argument that torch and its users pass is checked here.

A method checks torch's arguments (`arguments.py`) and submits the communicator's method of the same
meaning (`submit.py`). Names and signatures are torch's: `dist.all_reduce` calls `allreduce`. Each
method takes its options or, as older callers do, the bare root, operation or timeout (`older`).
Where torch has two names for an argument (`tensors`, `tensor`), both work. Ranks are the group's.
"""

from __future__ import annotations

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

from hccl_py.torch_backend.arguments import Call, TensorLists, Tensors, read_options
from hccl_py.torch_backend.identity import GroupIdentity
from hccl_py.torch_backend.sparse import all_reduce_sparse, is_sparse

Data = Tensors | None
Lists = TensorLists | None


class CheckedCalls(GroupIdentity):
    """The collectives of a process group, for all arguments."""

    def _call(self, name: str, kind: Any = None, *options: Any, **named: Any) -> Call:
        opts = kind and read_options(kind, *options, **named)
        return Call(name, opts, self._world_size, self._submitter.read_backends(self))

    def allreduce(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Reduce in place over all ranks."""
        call = self._call("allreduce", AllreduceOptions, opts, *older, **named)
        only = call.only("tensors", tensors, tensor)
        if is_sparse(only):
            return all_reduce_sparse(self._submitter, call, only)
        return self._all_reduce(call, [only])

    def allreduce_coalesced(self, tensors: Sequence[Tensor], opts: Any = None) -> dist.Work:
        """Reduce each of `tensors` in place over all ranks."""
        call = self._call("allreduce_coalesced", AllreduceCoalescedOptions, opts)
        return self._all_reduce(call, tensors)

    def _all_reduce(self, call: Call, tensors: Sequence[Tensor]) -> dist.Work:
        op = call.reduce_op()
        arguments = [(call.in_out("tensors", tensor), op) for tensor in tensors]
        return self._submitter.submit(call, "all_reduce", *arguments)

    def reduce(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Reduce over all ranks into the root's tensor; the others keep their values."""
        call = self._call("reduce", ReduceOptions, opts, *older, **named)
        op, root = call.reduce_op(), call.root("dst")
        only = call.only("tensors", tensors, tensor)
        if root == self._rank:
            buffer = call.in_out("tensor", only)
        else:
            buffer = call.input("tensor", only)
            call.results.append(only)
        return self._submitter.submit(call, "reduce", (buffer, root, op))

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
        call = self._call("reduce_scatter", ReduceScatterOptions, opts, *older, **named)
        op = call.reduce_op()
        target = call.only("output", output_tensors, output)
        blocks = call.blocks("input_list", input_tensors if input is None else input)
        buffer = call.output("output", target)
        inputs = [call.input("input_list", block, like=target) for block in blocks]
        call.same_size("output", target, inputs[self._rank].numel(), "this rank's block")
        if len({block.numel() for block in blocks}) == 1 or call.fake:
            return self._submitter.submit(call, "reduce_scatter", (buffer, inputs, op))
        # Blocks of several sizes, which all ranks see: one reduce per rank.
        inputs[self._rank] = own = inputs[self._rank].clone()
        call.copies.insert(0, (buffer, own))
        reduces = ((block, root, op) for root, block in enumerate(inputs))
        return self._submitter.submit(call, "reduce", *reduces)

    def reduce_scatter_single(
        self,
        output: Data = None,
        input: Data = None,
        opts: Any = None,
        outputTensor: Data = None,  # noqa: N803
        inputTensor: Data = None,  # noqa: N803
    ) -> dist.Work:
        """Reduce one tensor of equal blocks and keep this rank's."""
        call = self._call("reduce_scatter_single", ReduceScatterOptions, opts)
        target = call.only("output", output, outputTensor)
        source = call.only("input", input, inputTensor)
        return self._reduce_scatter_single(call, [target], [source])

    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do `reduce_scatter_single` for each pair."""
        call = self._call("reduce_scatter_single_coalesced", ReduceScatterOptions, opts)
        return self._reduce_scatter_single(call, outputs, inputs)

    def _reduce_scatter_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> dist.Work:
        op, n = call.reduce_op(), self._world_size
        arguments = []
        for output, source in call.pairs("outputs", outputs, "inputs", inputs):
            buffer = call.output("output", output)
            blocks = call.input("input", source, like=output)
            call.same_size("input", source, output.numel() * n, f"{n} times `output`")
            arguments.append((buffer, blocks, op))
        return self._submitter.submit(call, "reduce_scatter", *arguments)

    def broadcast(
        self, tensors: Data = None, opts: Any = None, *older: Any, tensor: Data = None, **named: Any
    ) -> dist.Work:
        """Copy the root's tensor to all ranks."""
        call = self._call("broadcast", BroadcastOptions, opts, *older, **named)
        root = call.root("src")
        only = call.only("tensors", tensors, tensor)
        if root == self._rank:
            buffer = call.input("tensor", only)
            call.results.append(only)
        else:
            buffer = call.output("tensor", only)
        return self._submitter.submit(call, "broadcast", (buffer, root))

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
        call = self._call("allgather", AllgatherOptions, opts, *older, **named)
        blocks = call.blocks("tensor_list", output_tensors)
        tensor = call.only("tensor", input_tensors, input_tensor)
        return self._submitter.submit(call, "all_gather", self._gathered(call, blocks, tensor))

    def allgather_coalesced(
        self,
        output_lists: Sequence[Sequence[Tensor]],
        input_list: Sequence[Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """Do `allgather` for each of `input_list`; entry r of the outputs is rank r's list."""
        call = self._call("allgather_coalesced", AllgatherOptions, opts)
        names = "output_tensor_lists", "input_tensor_list"
        call.one_per_rank(names[0], output_lists, "lists")
        by_rank = [call.pairs(names[0], tensors, names[1], input_list) for tensors in output_lists]
        arguments = [
            self._gathered(call, [output for output, _ in pairs], pairs[0][1])
            for pairs in zip(*by_rank, strict=True)
        ]
        return self._submitter.submit(call, "all_gather", *arguments)

    def _gathered(
        self, call: Call, blocks: Sequence[Tensor], tensor: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        source = call.input("tensor", tensor)
        targets = [call.output("tensor_list", block, like=tensor) for block in blocks]
        own = f"as `tensor` for rank {self._rank}"
        call.same_size("tensor_list", blocks[self._rank], tensor.numel(), own)
        return targets, source

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one, concatenated or stacked."""
        call = self._call("all_gather_single", AllgatherOptions, opts)
        return self._all_gather_single(call, [output], [input])

    def all_gather_single_coalesced(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], opts: Any = None
    ) -> dist.Work:
        """Do `all_gather_single` for each pair."""
        call = self._call("all_gather_single_coalesced", AllgatherOptions, opts)
        return self._all_gather_single(call, outputs, inputs)

    def _all_gather_single(
        self, call: Call, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> dist.Work:
        n = self._world_size
        arguments = []
        for output, source in call.pairs("outputs", outputs, "inputs", inputs):
            buffer = call.input("input", source)
            arguments.append((call.output("output", output, like=source), buffer))
            call.same_size("output", output, source.numel() * n, f"{n} times `input`")
        return self._submitter.submit(call, "all_gather", *arguments)

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
        call = self._call("gather", GatherOptions, opts, *older, **named)
        root = call.root("dst")
        tensor = call.only("tensor", input_tensors, input_tensor)
        if root == self._rank:
            blocks = call.blocks("gather_list", output_tensors)
            return self._submitter.submit(
                call, "gather", (*self._gathered(call, blocks, tensor), root)
            )
        buffer = call.input("tensor", tensor)
        call.no_blocks("gather_list", output_tensors, root)
        return self._submitter.submit(call, "gather", (None, buffer, root))

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
        call = self._call("scatter", ScatterOptions, opts, *older, **named)
        root = call.root("src")
        tensor = call.only("tensor", output_tensors, output_tensor)
        target = call.output("tensor", tensor)
        inputs = None
        if root == self._rank:
            blocks = call.blocks("scatter_list", input_tensors)
            inputs = [call.input("scatter_list", block, like=tensor) for block in blocks]
            call.same_size("tensor", tensor, inputs[root].numel(), "this rank's block")
        else:
            call.no_blocks("scatter_list", input_tensors, root)
        return self._submitter.submit(call, "scatter", (target, inputs, root))

    def alltoall(
        self,
        output_tensors: Sequence[Tensor],
        input_tensors: Sequence[Tensor],
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> dist.Work:
        """Send block i to rank i and receive block i from it; blocks may differ in size."""
        call = self._call("alltoall", AllToAllOptions, opts, *older, **named)
        sources = call.blocks("input_tensor_list", input_tensors)
        targets = call.blocks("output_tensor_list", output_tensors)
        buffers = [call.input("input_tensor_list", block, like=sources[0]) for block in sources]
        blocks = [call.output("output_tensor_list", block, like=sources[0]) for block in targets]
        own = sources[self._rank].numel()
        call.same_size("output_tensor_list", targets[self._rank], own, "this rank's own block")
        return self._submitter.submit(call, "all_to_all", (blocks, buffers))

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
        call = self._call("all_to_all_single", AllToAllOptions, opts, *older, **named)
        source = call.input("input", input)
        target = call.output("output", output, like=input)
        inputs = call.rows("input", source, input_split_sizes)
        outputs = call.rows("output", target, output_split_sizes)
        own = inputs[self._rank].numel()
        call.same_size("output", outputs[self._rank], own, "in the part for this rank itself")
        if len(input_split_sizes) or len(output_split_sizes):
            return self._submitter.submit(call, "all_to_all", (outputs, inputs))
        return self._submitter.submit(call, "all_to_all", (target, source))

    def barrier(self, opts: Any = None, *older: Any, **named: Any) -> dist.Work:
        """Block until every rank came."""
        call = self._call("barrier", BarrierOptions, opts, *older, **named)
        return self._submitter.submit(call, "barrier", ())

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Send to a rank that receives with the same tag."""
        call = self._call("send")
        peer = call.rank("dst", dstRank)
        buffer = call.input("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "send", buffer, peer, tag)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Receive from a rank that sends with the same tag."""
        call = self._call("recv")
        peer = call.rank("src", srcRank)
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "recv", buffer, peer, tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        """Receive from the first rank that sends with the tag; `source_rank` returns it."""
        call = self._call("recv_anysource")
        buffer = call.output("tensor", call.only("tensors", tensors))
        return self._submitter.transfer(call, "recv", buffer, None, tag)
