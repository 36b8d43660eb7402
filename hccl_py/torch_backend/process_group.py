"""The torch.distributed backend "hccl": the short way of calls with nothing to explain.

A call on one plain tensor with torch's own options goes straight to the communicator's method of
the same meaning. If that refuses an argument, nothing has been sent: then, and for all other calls,
the class below (`torch_checked.py`) stages what can be staged and explains the rest. What torch
asks about the group itself stands in `torch_surface.py`.

The guard of each method is written out: a Python frame costs as much as a call in the engine.
Tensors of a subclass, timeouts of their own and the profiler take the way below; the communicator
refuses what is no plain memory, two element types, wrong sizes and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    ReduceOptions,
    ReduceScatterOptions,
)
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.torch_backend.arguments import Call
from hccl_py.torch_backend.checked import CheckedGroup
from hccl_py.torch_backend.future_threads import Lane
from hccl_py.torch_backend.running import FINISHED
from hccl_py.torch_backend.types import OPS_BY_HASH, PLAIN_TYPES, UNSET_TIMEOUT, Tensors
from hccl_py.torch_backend.work import HcclWork, as_torch_error
from hccl_py.transport.errors import HcclError, InvalidArgumentError
from hccl_py.work import Work


class ProcessGroupHccl(CheckedGroup):
    """A torch.distributed process group whose collectives run on hccl-py."""

    def allreduce(
        self,
        tensors: Tensors | None = None,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        tensor: Tensor | None = None,
    ) -> dist.Work:
        """Reduce in place over all ranks."""
        if (
            type(opts) is AllreduceOptions
            and type(tensors) is list
            and len(tensors) == 1
            and type(tensors[0]) in PLAIN_TYPES
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            ours = OPS_BY_HASH.get(hash(opts.reduceOp))
            if ours is not None:
                self._sequence_number += 1
                try:
                    if opts.asyncOp:
                        native = self._communicator.nonblocking.all_reduce(tensors[0], ours)
                        return self._started(native, [tensors[0]], self._lane)
                    self._communicator.all_reduce(tensors[0], ours)
                    return FINISHED
                except InvalidArgumentError:
                    self._sequence_number -= 1
                except HcclError as error:
                    raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().allreduce(tensors if tensor is None else tensor, opts, op, timeout)

    def broadcast(
        self,
        tensors: Tensors | None = None,
        opts: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
        tensor: Tensor | None = None,
    ) -> dist.Work:
        """Copy the root's tensor to all ranks."""
        if (
            type(opts) is BroadcastOptions
            and type(tensors) is list
            and len(tensors) == 1
            and type(tensors[0]) in PLAIN_TYPES
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            self._sequence_number += 1
            try:
                if opts.asyncOp:
                    native = self._communicator.nonblocking.broadcast(tensors[0], opts.rootRank)
                    return self._started(native, [tensors[0]], self._lane)
                self._communicator.broadcast(tensors[0], opts.rootRank)
                return FINISHED
            except InvalidArgumentError:
                self._sequence_number -= 1
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().broadcast(tensors if tensor is None else tensor, opts, timeout, root)

    def reduce(
        self,
        tensors: Tensors | None = None,
        opts: Any = None,
        op: Any = None,
        timeout: timedelta | None = None,
        root: int | None = None,
        tensor: Tensor | None = None,
    ) -> dist.Work:
        """Reduce over all ranks into the root's tensor; the others keep their values."""
        if (
            type(opts) is ReduceOptions
            and type(tensors) is list
            and len(tensors) == 1
            and type(tensors[0]) in PLAIN_TYPES
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            ours = OPS_BY_HASH.get(hash(opts.reduceOp))
            if ours is not None:
                self._sequence_number += 1
                try:
                    if opts.asyncOp:
                        native = self._communicator.nonblocking.reduce(
                            tensors[0], opts.rootRank, ours
                        )
                        return self._started(native, [tensors[0]], self._lane)
                    self._communicator.reduce(tensors[0], opts.rootRank, ours)
                    return FINISHED
                except InvalidArgumentError:
                    self._sequence_number -= 1
                except HcclError as error:
                    raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().reduce(tensors if tensor is None else tensor, opts, op, timeout, root)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        """Collect every rank's tensor in one, concatenated or stacked."""
        if (
            type(opts) is AllgatherOptions
            and type(output) in PLAIN_TYPES
            and type(input) in PLAIN_TYPES
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            self._sequence_number += 1
            try:
                if opts.asyncOp:
                    native = self._communicator.nonblocking.all_gather(output, input)
                    return self._started(native, [output], self._lane)
                self._communicator.all_gather(output, input)
                return FINISHED
            except InvalidArgumentError:
                self._sequence_number -= 1
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().all_gather_single(output, input, opts)

    def reduce_scatter_single(
        self,
        output: Any = None,
        input: Any = None,
        opts: Any = None,
        outputTensor: Tensor | None = None,  # noqa: N803
        inputTensor: Tensor | None = None,  # noqa: N803
    ) -> dist.Work:
        """Reduce one tensor of equal blocks and keep this rank's."""
        if (
            type(opts) is ReduceScatterOptions
            and type(output) in PLAIN_TYPES
            and type(input) in PLAIN_TYPES
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            ours = OPS_BY_HASH.get(hash(opts.reduceOp))
            if ours is not None:
                self._sequence_number += 1
                try:
                    if opts.asyncOp:
                        native = self._communicator.nonblocking.reduce_scatter(output, input, ours)
                        return self._started(native, [output], self._lane)
                    self._communicator.reduce_scatter(output, input, ours)
                    return FINISHED
                except InvalidArgumentError:
                    self._sequence_number -= 1
                except HcclError as error:
                    raise as_torch_error(error)  # noqa: B904  # it names its cause
        output = output if outputTensor is None else outputTensor
        input = input if inputTensor is None else inputTensor
        return super().reduce_scatter_single(output, input, opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Send rows of `input` to each rank in turn; empty split sizes mean equal parts."""
        if (
            type(opts) is AllToAllOptions
            and not len(output_split_sizes)
            and not len(input_split_sizes)
            and type(output) in PLAIN_TYPES
            and type(input) in PLAIN_TYPES
            # Equal parts are of rows, not of elements.
            and input.dim()
            and output.dim()
            and not input.size(0) % self._world_size
            and not output.size(0) % self._world_size
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            self._sequence_number += 1
            try:
                if opts.asyncOp:
                    native = self._communicator.nonblocking.all_to_all(output, input)
                    return self._started(native, [output], self._lane)
                self._communicator.all_to_all(output, input)
                return FINISHED
            except InvalidArgumentError:
                self._sequence_number -= 1
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        sizes = output_split_sizes, input_split_sizes
        return super().all_to_all_single(output, input, *sizes, opts, timeout)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        """Block until every rank came."""
        if (
            type(opts) is BarrierOptions
            and not opts.asyncOp
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            self._sequence_number += 1
            try:
                self._communicator.barrier()
                return FINISHED
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().barrier(opts, timeout)

    def send(self, tensors: Tensors, dstRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Send to a rank that receives with the same tag."""
        if type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES:
            try:
                native = self._communicator.nonblocking.send(tensors[0], dstRank, tag)
                return self._started(native, [], None)
            except InvalidArgumentError:
                pass
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().send(tensors, dstRank, tag)

    def recv(self, tensors: Tensors, srcRank: int, tag: int = 0) -> dist.Work:  # noqa: N803
        """Receive from a rank that sends with the same tag."""
        if type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES:
            try:
                native = self._communicator.nonblocking.recv(tensors[0], srcRank, tag)
                return self._started(native, tensors, None)
            except InvalidArgumentError:
                pass
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return super().recv(tensors, srcRank, tag)

    def _started(self, native: Work, results: list[Tensor], lane: Lane | None) -> dist.Work:
        call = Call("started")
        call.results = results
        return self._remember(HcclWork([native], call, lane))

    # The names of older torch versions.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
