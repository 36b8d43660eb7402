"""The process group of torch.distributed: its calls, and the groups made from it.

`dist.all_reduce` calls `allreduce`, and so on: names and arguments are torch's. Plain tensors go to
the communicator at once. A Python frame costs as much as a small call in the engine, so each method
checks for itself that they are plain. The communicator rejects what is no plain memory, mixed
element types, wrong sizes and wrong ranks before it sends anything. Then, and for tensor
subclasses, timeouts of a call, the profiler and older overloads, `CheckedCalls` takes over.
`GroupIdentity` answers what else torch asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    PrefixStore,
    ReduceOptions,
    ReduceScatterOptions,
)
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.collectives import Collectives
from hccl_py.torch_backend.arguments import OPS_BY_HASH, PLAIN_TYPES, UNSET_TIMEOUT
from hccl_py.torch_backend.checked import CheckedCalls
from hccl_py.torch_backend.work import FINISHED, as_torch_error, raise_failure
from hccl_py.transport.errors import HcclError, InvalidArgumentError

if TYPE_CHECKING:
    from hccl_py.communicator import Communicator

_op = OPS_BY_HASH.get


class ProcessGroupHccl(CheckedCalls):
    """A torch.distributed process group whose collectives run on hccl-py."""

    def allreduce(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Any:
        """Reduce in place over all ranks."""
        group = self._submitter
        if (
            (type(opts) is AllreduceOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES)
            and not _profiler_enabled()
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.all_reduce(tensors[0], _op(hash(opts.reduceOp)))
                return FINISHED if work is None else group.started(work, tensors, group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().allreduce(tensors, opts, *older, **named)

    def broadcast(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Any:
        """Copy the root's tensor to all ranks."""
        group = self._submitter
        if (
            (type(opts) is BroadcastOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES)
            and not _profiler_enabled()
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.broadcast(tensors[0], opts.rootRank)
                return FINISHED if work is None else group.started(work, tensors, group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().broadcast(tensors, opts, *older, **named)

    def reduce(self, tensors: Any = None, opts: Any = None, *older: Any, **named: Any) -> Any:
        """Reduce over all ranks into the root's tensor."""
        group = self._submitter
        if (
            (type(opts) is ReduceOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES)
            and not _profiler_enabled()
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.reduce(tensors[0], opts.rootRank, _op(hash(opts.reduceOp)))
                return FINISHED if work is None else group.started(work, tensors, group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().reduce(tensors, opts, *older, **named)

    def all_gather_single(
        self, output: Any = None, input: Any = None, opts: Any = None, **named: Any
    ) -> Any:
        """Collect every rank's tensor in one."""
        group = self._submitter
        if (
            (type(opts) is AllgatherOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(output) in PLAIN_TYPES and type(input) in PLAIN_TYPES)
            and not _profiler_enabled()
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.all_gather(output, input)
                return FINISHED if work is None else group.started(work, [output], group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().all_gather_single(output, input, opts, **named)

    def reduce_scatter_single(  # type: ignore[override]
        self, output: Any = None, input: Any = None, opts: Any = None, **named: Any
    ) -> Any:
        """Reduce one tensor of equal blocks and keep this rank's."""
        group = self._submitter
        if (
            (type(opts) is ReduceScatterOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(output) in PLAIN_TYPES and type(input) in PLAIN_TYPES)
            and not _profiler_enabled()
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.reduce_scatter(output, input, _op(hash(opts.reduceOp)))
                return FINISHED if work is None else group.started(work, [output], group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().reduce_scatter_single(output, input, opts, **named)

    def all_to_all_single(
        self,
        output: Any,
        input: Any,
        output_split_sizes: Any,
        input_split_sizes: Any,
        opts: Any = None,
        *older: Any,
        **named: Any,
    ) -> Any:
        """Send rows to each rank in turn."""
        group = self._submitter
        if (
            (type(opts) is AllToAllOptions and group.fast and opts.timeout == UNSET_TIMEOUT)
            and (type(output) in PLAIN_TYPES and type(input) in PLAIN_TYPES)
            and not _profiler_enabled()
            and not (len(output_split_sizes) or len(input_split_sizes))
            and (output.dim() and input.dim())
            and not (output.size(0) % self._world_size or input.size(0) % self._world_size)
        ):
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.all_to_all(output, input)
                return FINISHED if work is None else group.started(work, [output], group.lane)
            except HcclError as error:
                raise_failure(error)
        splits = output_split_sizes, input_split_sizes
        return super().all_to_all_single(output, input, *splits, opts, *older, **named)

    def barrier(self, opts: Any = None, *older: Any, **named: Any) -> Any:
        """Block until every rank came."""
        group = self._submitter
        if (
            type(opts) is BarrierOptions and group.fast and opts.timeout == UNSET_TIMEOUT
        ) and not _profiler_enabled():
            try:
                calls: Collectives[Any] = group.background if opts.asyncOp else group.blocking
                work = calls.barrier()
                return FINISHED if work is None else group.started(work, [], group.lane)
            except HcclError as error:
                raise_failure(error)
        return super().barrier(opts, *older, **named)

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Any:  # noqa: N803
        """Send to a rank that receives with the same tag."""
        group = self._submitter
        if group.fast and (
            type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES
        ):
            try:
                work = group.background.send(tensors[0], dstRank, tag)
                return group.started(work, tensors, None)
            except HcclError as error:
                raise_failure(error)
        return super().send(tensors, dstRank, tag)

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Any:  # noqa: N803
        """Receive from a rank that sends with the same tag."""
        group = self._submitter
        if group.fast and (
            type(tensors) is list and len(tensors) == 1 and type(tensors[0]) in PLAIN_TYPES
        ):
            try:
                work = group.background.recv(tensors[0], srcRank, tag)
                return group.started(work, tensors, None)
            except HcclError as error:
                raise_failure(error)
        return super().recv(tensors, srcRank, tag)

    # The names of older torch versions.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = CheckedCalls.all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = CheckedCalls.reduce_scatter_single_coalesced

    # ------------------------------------------------------------ groups made from this one

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> ProcessGroupHccl | None:
        """Return a group of some ranks of this one, which torch does not know.

        `torch.distributed.split_group` and `new_group` make one that torch knows.

        Args:
            ranks: of this group, in the order that they have in the new one; all of them call.
            timeout: of the new group; None: the same as here.
            opts, device_types: ignored.
            group_name: of the new group, the same on all of its ranks.
            group_desc: for the user.

        Returns:
            The group; None on a rank that is not in it.

        Raises:
            InvalidArgumentError: these are not ranks of this group.
            DistBackendError: a rank did not come, or died.
        """
        members = [int(rank) for rank in ranks]
        if self.rank() not in members:
            return None
        self._splits[tuple(members)] += 1
        part = f"split/{'-'.join(map(str, members))}/{self._splits[tuple(members)]}"
        name = group_name or f"{self._name}/{part}"
        limit_s = None if timeout is None else timeout.total_seconds()
        made = self.subset(members, name, limit_s)
        everybody = self._global_ranks or range(self.size())
        group = self._derived(made, part, [everybody[rank] for rank in members], name)
        group.setGroupDesc(group_desc or f"{self._description}:split")
        return group

    def subset(self, members: Sequence[int], name: str, timeout_s: float | None) -> Communicator:
        """Return a communicator of some ranks of this group; see `split_group`."""
        self._submitter.drain()
        try:
            return self._communicator.subset(members, name, timeout_s=timeout_s)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause

    def shrink(
        self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, pg_options: object = None
    ) -> ProcessGroupHccl:
        """Return a group of the other ranks; `dist.shrink_group` replaces this group by it.

        Ranks that have died are left out whether they are named or not.

        Args:
            ranks_to_exclude: of this group; the same on all others, which all have to call.
            shrink_flags: SHRINK_ABORT ends what is in flight first.
            pg_options: ignored; a group has no options.

        Raises:
            DistBackendError: on all ranks that called: too few came, or they could not connect.
        """
        if shrink_flags:
            self._communicator.abort("shrink_group was called with SHRINK_ABORT")
        self._submitter.drain()
        try:
            left = self._communicator.shrink(ranks_to_exclude)
        except HcclError as error:
            raise as_torch_error(error)  # noqa: B904  # it names its cause
        # The default group has no list of ranks; the ranks that are left are numbered anew.
        ranks = [self._global_ranks[rank] for rank in left.old_ranks if self._global_ranks]
        part = f"shrunk/{left.flight_recorder.member.id.hex()}"
        return self._derived(left, part, ranks, left.name)

    def _derived(
        self, communicator: Communicator, part: str, ranks: list[int], name: str
    ) -> ProcessGroupHccl:
        # A prefix of its own: the new group must not read what this one wrote to the store.
        group = ProcessGroupHccl(communicator, PrefixStore(part, self._store), ranks, name)
        group._submitter.set_backends(self._submitter.read_backends(self))
        return group

    def merge_remote_group(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise: groups are made of ranks of the default group, or at a store."""
        raise InvalidArgumentError(
            "merge_remote_group: hccl groups cannot be merged; put all ranks in one job with "
            "torch.distributed.init_process_group, and make the parts with new_group(ranks)"
        )
