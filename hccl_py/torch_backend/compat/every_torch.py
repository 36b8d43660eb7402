"""What every known torch needs changed for hccl-py, 2.14 and a group with HcclBackend included."""

import contextlib
import hashlib
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import _resolve_process_group

from hccl_py.torch_backend import (
    adopt_rank_of_scheduler,
    let_signals_interrupt_rendezvous,
    watch_backend_names,
)
from hccl_py.torch_backend.checks.overlap import require_transfers_apart
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.torch_backend.compat.patch import (
    Function,
    Patch,
    call,
    implement,
    replace_in_dynamo,
    replace_once_imported,
)
from hccl_py.torch_backend.future_threads import add_callback, collect_all
from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.torch_backend.groups.process_group import ProcessGroupHccl
from hccl_py.torch_backend.groups.replace_gloo import replace_gloo
from hccl_py.torch_backend.instruments.profilers import end_events
from hccl_py.torch_backend.operators import group_name
from hccl_py.torch_backend.work import register_for_wait_tensor
from hccl_py.transport.arguments import shown
from hccl_py.transport.deadline import pause
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.threads import SIGNAL_SLICE_S


def _wait_for_future(original: Function, future: Any) -> Any:
    """Torch waits in C++, where no signal handler runs until the future is done."""
    if threading.current_thread() is threading.main_thread() and not future.done():
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(SIGNAL_SLICE_S):
            pass
    return original(future)


def _wait_at_store(
    original: Function, store: Any, keys: list[str], timeout: timedelta | None = None
) -> None:
    """Torch waits in C++, where no signal handler runs until the keys are set."""
    limit_s = (store.timeout if timeout is None else timeout).total_seconds()
    begin_s, waited_s = time.monotonic(), 0.0
    if threading.current_thread() is threading.main_thread():
        # Not in slices: a TCPStore logs each wait that times out.
        while waited_s < limit_s and not store.check(keys):
            pause(min(max(waited_s / 10, 0.001), limit_s - waited_s, SIGNAL_SLICE_S))
            waited_s = time.monotonic() - begin_s
    original(store, keys, timedelta(seconds=max(limit_s - waited_s, 0.001)))


def _check_transfers(original: Function, ops: Any) -> None:
    """Torch starts some transfers of a batch before it rejects another for shared memory."""
    original(ops)
    if backend_of(ops[0].group or dist.group.WORLD) is not None and ops[0].tensor.is_cpu:
        require_transfers_apart([(op.op is dist.isend, op.peer, op.tag, op.tensor) for op in ops])


@contextlib.contextmanager
def _coalescing_manager(
    original: Function, group: Any = None, device: Any = None, async_ops: bool = False
) -> Iterator[Any]:
    """After an exception in the block torch never runs another call of the group.

    It adds all later calls to the failed batch.
    """
    asked = group or dist.group.WORLD
    try:
        with original(group, device, async_ops) as manager:
            yield manager
    except BaseException:
        backend = backend_of(asked)
        if backend is not None:
            dist.distributed_c10d._world.pg_coalesce_state.pop(asked, None)  # type: ignore[arg-type]
            backend.abandon_coalescing()
        raise


_num_groups: weakref.WeakKeyDictionary[Any, Counter[tuple[int, ...]]] = weakref.WeakKeyDictionary()
"""By default group: how often a set of ranks made a group."""


def _process_group_name(original: Function, ranks: Sequence[int], use_hashed_name: bool) -> Any:
    """Torch names a group after this rank's number of groups, which may differ between ranks.

    Members then wait at different keys. From pytorch#189073 on torch counts the calls, which also
    differ if only the members of a group call.
    """
    world = dist.group.WORLD
    if not (use_hashed_name and backend_of(world)):
        return original(ranks, use_hashed_name)
    members = tuple(ranks)
    counts = _num_groups.setdefault(world, Counter())
    counts[members] += 1
    text = f"hccl/{members}/{counts[members]}"
    # Debug output and file names show it, so it is as long as torch's names.
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def _split_group(
    original: Function,
    parent_pg: Any = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **options: Any,
) -> Any:
    """Torch splits only groups that are bound to an accelerator."""
    world: Any = dist.group.WORLD
    parent = parent_pg or world
    part = backend_of(parent)
    if part is None:
        return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **options)
    splits = _checked_splits(split_ranks, parent.size())
    if part is not parent and world.bound_device_id is not None:
        _require_every_rank(splits, parent.size())
        return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **options)
    mine = next((split for split in splits if parent.rank() in split), None)
    if mine is None:
        # Torch versions with `set_timeout` return this to other ranks.
        return dist.GroupMember.NON_GROUP_MEMBER if hasattr(dist, "set_timeout") else None
    world_ranks = dist.get_process_group_ranks(parent)
    return dist.new_group(
        [world_ranks[rank] for rank in mine],
        timeout=part.options._timeout if timeout is None else timeout,
        # Without a name, `replace_gloo` gives it to hccl.
        backend=options.get("backend") or (None if part.shown_as else dist.get_backend(parent)),
        pg_options=pg_options,
        use_local_synchronization=True,  # only the members of a part call
        group_desc=group_desc or f"{parent.group_desc}:split",
        sort_ranks=False,
    )


def _checked_splits(splits: Any, world_size: int) -> Any:
    sequences = (list, tuple, range)
    lists = isinstance(splits, sequences) and all(isinstance(one, sequences) for one in splits)
    ranks = [rank for split in splits for rank in split] if lists and all(splits) else []
    valid = all(isinstance(rank, int) and 0 <= rank < world_size for rank in ranks)
    if not ranks or not valid or len(set(ranks)) < len(ranks):
        raise InvalidArgumentError(
            "split_group: expected `split_ranks` to be lists of ranks of the parent group, 0 to "
            f"{world_size - 1}, each at most once, such as [[0, 1], [2, 3]]; got {shown(splits)}"
        )
    return splits


def _require_every_rank(splits: Any, world_size: int) -> None:
    left_out = set(range(world_size)).difference(*splits)
    if left_out:
        raise InvalidArgumentError(
            "split_group: expected every rank of a group that is bound to an accelerator to be in "
            f"one of `split_ranks`, but rank(s) {sorted(left_out)} are in none; make the parts "
            "with torch.distributed.new_group"
        )


def _create_shrunk_group(
    original: Function, shrunk: Any, remaining_ranks: Any, metadata: Any, is_default_group: bool
) -> Any:
    """Torch wraps the result of `shrink` in a C++ group, which takes only a C++ backend.

    It also reads the excluded ranks of the group as ranks of the default group.
    """
    if isinstance(shrunk, TorchCollectives):
        # The caller continues to use this list.
        remaining_ranks[:] = shrunk.options.global_ranks_in_group or range(shrunk.size())
    if not isinstance(shrunk, ProcessGroupHccl):
        return original(shrunk, remaining_ranks, metadata, is_default_group)
    name = metadata["original_group_name"]
    shrunk.setGroupName(metadata["new_group_name"])
    shrunk.setGroupDesc("default:shrunken" if is_default_group else f"{name}:shrunk")
    return shrunk


def _register_builtin_hook(original: Function, ddp: Any, comm_hook_type: Any) -> None:
    """The fp16 hook in C++ makes the backward pass fail; the same hook in Python replaces it.

    The C++ hook expects a C++ list of tensors in the future, which a Python future cannot hold.
    """
    fp16 = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
    if not (fp16 and backend_of(ddp.process_group)):
        original(ddp, comm_hook_type)
        return
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(ddp.process_group, fp16_compress_hook)
    # DDP's logging data names the hook that the user asked for.
    ddp.logger._set_comm_hook_name(str(comm_hook_type))


_forward_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _keep_forward_work(original: Function, reducer: Any, work: Any, *arguments: Any) -> None:
    """DDP's join passes a Work to C++, which keeps only the C++ half. The patch keeps the Work.

    Otherwise Python drops the Work, and C++ waits in its base class for ever.
    """
    _forward_works[reducer] = work
    original(reducer, work, *arguments)


class _Matrices(dict[int, Any]):
    """PowerSGD's by bucket; a hook without warm start makes a bucket's anew in each step."""

    def clear(self) -> None:
        """Keep them: other buckets' callbacks still need theirs."""


def _init_power_sgd(original: Function, state: Any, *arguments: Any, **named: Any) -> None:
    """Without warm start PowerSGD's callback of one bucket drops the matrices of all buckets.

    Another bucket's callback then fails on this rank, and the other ranks wait for its call.
    """
    original(state, *arguments, **named)
    if not state.warm_start:
        state.p_memory_dict, state.q_memory_dict = _Matrices(), _Matrices()


def _batch_p2p_ops(
    op_list: Any, peer_list: Any, tag_list: Any, tensors: Any, group_name: Any
) -> list[Any]:
    """Torch calls methods of the C++ group that no Python group can override."""
    group: Any = _resolve_process_group(group_name)
    sends = [op == "isend" for op in op_list]
    require_transfers_apart(list(zip(sends, peer_list, tag_list, tensors, strict=True)))
    for op, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        start = group.send if op == "isend" else group.recv
        register_for_wait_tensor(tensor, start([tensor], peer, tag))
    return list(tensors)


def _shard_dim_all_to_all(
    original: Function, tensor: Any, gather_dim: int, shard_dim: int, mesh: Any, mesh_dim: int
) -> Any:
    """Torch gathers the whole tensor of a CPU mesh on each rank: gloo had no all_to_all."""
    group = mesh.get_group(mesh_dim)
    if backend_of(group) is None:
        return original(tensor, gather_dim, shard_dim, mesh, mesh_dim)
    name = functional._group_or_group_name(group)
    return torch.ops._dtensor.shard_dim_alltoall(tensor, gather_dim, shard_dim, name)


_OPS = torch.ops.hccl


def _compiled_all_reduce(tensor: Any, op: str = "sum", group: Any = None, **named: Any) -> None:
    """Torch's compiled code starts a call on a thread of the engine, and only waits for it."""
    if name := group_name(tensor, tensor, group):
        _OPS.all_reduce_(tensor, op, name)
    else:
        functional.all_reduce_inplace(tensor, op, group, **named)


def _compiled_all_gather(
    output_tensor: Any, input_tensor: Any, group: Any = None, **named: Any
) -> None:
    """The same as for all_reduce."""
    if name := group_name(output_tensor, input_tensor, group):
        _OPS.all_gather_into_tensor_(output_tensor, input_tensor, name)
    else:
        functional.all_gather_tensor_inplace(output_tensor, input_tensor, group, **named)


def _compiled_reduce_scatter(
    output: Any, input: Any, op: str = "sum", group: Any = None, **named: Any
) -> None:
    """The same as for all_reduce."""
    if name := group_name(output, input, group):
        _OPS.reduce_scatter_tensor_(output, input, op, name)
    else:
        functional.reduce_scatter_tensor_inplace(output, input, op, group, **named)


def _compiled_all_to_all(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    **named: Any,
) -> None:
    """The same as for all_reduce."""
    sizes = output_split_sizes, input_split_sizes
    if name := group_name(output, input, group):
        _OPS.all_to_all_single_(output, input, sizes[0] or [], sizes[1] or [], name)
    else:
        functional.all_to_all_inplace(output, input, *sizes, group, **named)


def _end_events_first(original: Function) -> Any:
    """Torch frees a profiler's events; ending the event of a call in flight later crashes."""
    end_events()
    return original()


def _exclude_from_dynamo() -> None:
    """Dynamo fails on objects of hccl-py; its functions are marked as not to be compiled.

    DDP's reducer calls `broadcast` of a group while Dynamo compiles.
    """
    from torch._C._dynamo import eval_frame

    # Unlike `torch._dynamo.disable`, marks cost nothing per call and do not import torch._dynamo.
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for name, module in list(sys.modules.items()):
        if name.startswith("hccl_py."):
            for code in _codes_of(module):
                eval_frame.set_code_exec_strategy(code, skip)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            while isinstance(function, FunctionType):
                if function.__globals__["__name__"].startswith("hccl_py."):
                    yield from _nested(function.__code__)
                function = getattr(function, "__wrapped__", None)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


_C10D = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"
_POWER_SGD = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"
_FUNCTIONAL = "torch.ops._c10d_functional"

AT_IMPORT = (
    Patch("torch.distributed.Backend.register_backend", watch_backend_names),
    Patch(f"{_C10D}.init_process_group", adopt_rank_of_scheduler),
    Patch(f"{_C10D}._new_group_with_tag", replace_gloo),
    Patch("torch.distributed.rendezvous._create_c10d_store", let_signals_interrupt_rendezvous),
)
"""`import torch` applies these."""

PATCHES = (
    Patch("torch._C.Future.wait", _wait_for_future),
    Patch("torch._C.Future.then", add_callback),
    Patch("torch._C.Future.add_done_callback", add_callback),
    Patch("torch._C._collect_all", collect_all),
    Patch("torch._C._distributed_c10d.Store.wait", _wait_at_store),
    Patch(f"{_C10D}._process_group_name", _process_group_name),
    Patch(f"{_C10D}.split_group", _split_group),
    Patch(f"{_C10D}._check_p2p_op_list", _check_transfers),
    Patch(f"{_C10D}._coalescing_manager", _coalescing_manager),
    Patch(f"{_C10D}._create_shrunk_process_group", _create_shrunk_group),
    Patch(f"{_DDP}._register_builtin_comm_hook", _register_builtin_hook),
    Patch("torch.distributed.Reducer._set_forward_pass_work_handle", _keep_forward_work),
    Patch(f"{_POWER_SGD}.PowerSGDState.__init__", _init_power_sgd, replace_once_imported),
    Patch("torch.autograd.profiler._disable_profiler", _end_events_first),
    Patch(
        "torch.distributed.tensor.placement_types.shard_dim_alltoall",
        _shard_dim_all_to_all,
        replace_once_imported,
    ),
    Patch(f"{_FUNCTIONAL}.batch_p2p_ops", _batch_p2p_ops, implement),
    Patch("torch.distributed.all_reduce", _compiled_all_reduce, replace_in_dynamo),
    Patch("torch.distributed.all_gather_into_tensor", _compiled_all_gather, replace_in_dynamo),
    Patch("torch.distributed.all_gather_single", _compiled_all_gather, replace_in_dynamo),
    Patch("torch.distributed.reduce_scatter_tensor", _compiled_reduce_scatter, replace_in_dynamo),
    Patch("torch.distributed.reduce_scatter_single", _compiled_reduce_scatter, replace_in_dynamo),
    Patch("torch.distributed.all_to_all_single", _compiled_all_to_all, replace_in_dynamo),
    Patch("torch._C._dynamo.eval_frame", _exclude_from_dynamo, call),
)
