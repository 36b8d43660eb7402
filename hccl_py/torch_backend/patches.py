"""Everything that hccl-py changes in torch, one entry for each change; no other file changes torch.

    python -m hccl_py.torch_backend.patches     # prints what is patched, why, and in which torch

Torch does not expect a process group that is written in Python in the places below. A replaced
function calls torch's own function for every other group. `functools.wraps` keeps torch's function
as `__wrapped__`; `tests/torch_backend/test_patches.py` calls it, and fails when torch no longer
needs the patch.

`import torch` itself applies the first entry, so this module imports torch inside functions only.
Code that imported one of these functions by name before the first hccl group was made still has
torch's own function. The method of the same name on the group does the same work.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import CodeType, FunctionType, ModuleType
from typing import Any

from hccl_py.torch_backend import NAME

Function = Callable[..., Any]


@dataclass(frozen=True)
class Patch:
    """One change to torch.

    Attributes:
        target: dotted name of what is changed.
        reason: what goes wrong without the change.
        torch: the version of torch that was last seen to need it.
        replacement: takes torch's function and the type of the groups that need the change, and
            returns the function to put in its place; None: `apply` does something else.
        apply: makes a change that replaces no function; takes the type of the groups.
    """

    target: str
    reason: str
    torch: str = "2.13"
    replacement: Callable[[Function, type[Any]], Function] | None = None
    apply: Callable[[type[Any]], None] | None = None

    def make(self, group_type: type[Any]) -> None:
        """Make the change, unless this torch has no such function."""
        if self.apply is not None:
            self.apply(group_type)
            return
        assert self.replacement is not None
        owner_name, _, name = self.target.rpartition(".")
        owner = pkgutil.resolve_name(owner_name)
        original = getattr(owner, name, None)
        if original is None:
            return
        replaced = functools.wraps(original)(self.replacement(original, group_type))
        setattr(owner, name, replaced)
        # torch.distributed has a reference of its own to some functions of distributed_c10d.
        package = sys.modules["torch.distributed"]
        if getattr(package, name, None) is original:
            setattr(package, name, replaced)


# ---------------------------------------------------------------- names of backends


def watch_backend_names(creator: Function, warn: Callable[[], None]) -> None:
    """Call `warn` when another package registers `NAME` later.

    Args:
        creator: hccl-py's own function that makes groups.
        warn: called once.
    """
    import torch.distributed as dist

    backend: Any = dist.Backend
    original = backend.register_backend

    @functools.wraps(original)
    def register_backend(name: str, func: Any, *arguments: Any, **options: Any) -> Any:
        done = original(name, func, *arguments, **options)
        if func is not creator and str(name).lower() == NAME:
            backend.register_backend = original
            warn()
        return done

    backend.register_backend = staticmethod(register_backend)


# ---------------------------------------------------------------- functions of torch.distributed


def _monitored_barrier(original: Function, group_type: type[Any]) -> Function:
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> Any:
        asked = group or _world()
        if not isinstance(asked, group_type):
            return original(group, timeout, wait_all_ranks)
        return asked.monitored_barrier(timeout, wait_all_ranks)

    return monitored_barrier


def _set_timeout(original: Function, group_type: type[Any]) -> Function:
    def set_timeout(timeout: timedelta, group: Any = None) -> Any:
        asked = group or _world()
        if not isinstance(asked, group_type):
            return original(timeout, group)
        return asked.set_timeout(timeout)

    return set_timeout


def _coalescing_manager(original: Function, group_type: type[Any]) -> Function:
    @contextlib.contextmanager
    def coalescing_manager(
        group: Any = None, device: Any = None, async_ops: bool = False
    ) -> Iterator[Any]:
        import torch.distributed as dist

        asked = group or _world()
        try:
            with original(group, device, async_ops) as manager:
                yield manager
        except BaseException:
            if isinstance(asked, group_type):
                dist.distributed_c10d._world.pg_coalesce_state.pop(asked, None)
                asked._abandon_coalescing()
            raise

    return coalescing_manager


def _split_group(original: Function, group_type: type[Any]) -> Function:
    def split_group(
        parent_pg: Any = None,
        split_ranks: Sequence[Sequence[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **options: Any,
    ) -> Any:
        import torch.distributed as dist

        parent = parent_pg or _world()
        if not isinstance(parent, group_type):
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **options)
        splits = _checked_splits(split_ranks, parent.size())
        mine = next((split for split in splits if parent.rank() in split), None)
        if mine is None:
            # Torch returns this to other ranks since it has `set_timeout`.
            return dist.GroupMember.NON_GROUP_MEMBER if hasattr(dist, "set_timeout") else None
        world_ranks = dist.get_process_group_ranks(parent)
        return dist.new_group(
            [world_ranks[rank] for rank in mine],
            timeout=timeout or parent.options._timeout,
            backend=options.get("backend") or dist.get_backend(parent),
            pg_options=pg_options,
            use_local_synchronization=True,  # only the members of a part call
            group_desc=group_desc or f"{parent.group_desc}:split",
            sort_ranks=False,
        )

    return split_group


def _checked_splits(splits: Any, world_size: int) -> Sequence[Sequence[int]]:
    """Return `splits`, which must be lists of different ranks of the parent."""
    from hccl_py.transport.errors import InvalidArgumentError

    wanted = "split_group: expected `split_ranks` to be lists of ranks of the parent group, "
    if not splits or any(isinstance(split, int) or not split for split in splits):
        raise InvalidArgumentError(f"{wanted}such as [[0, 1], [2, 3]]; got {splits!r}")
    ranks = [rank for split in splits for rank in split]
    if any(rank not in range(world_size) for rank in ranks):
        raise InvalidArgumentError(f"{wanted}0 to {world_size - 1}; got {splits!r}")
    if len(set(ranks)) != len(ranks):
        raise InvalidArgumentError(f"{wanted}each at most once; got {splits!r}")
    checked: Sequence[Sequence[int]] = splits
    return checked


def _create_shrunk_group(original: Function, group_type: type[Any]) -> Function:
    def create(
        shrunk: Any, remaining_ranks: list[int], metadata: dict[str, Any], is_default_group: bool
    ) -> Any:
        if not isinstance(shrunk, group_type):
            return original(shrunk, remaining_ranks, metadata, is_default_group)
        # The caller goes on to use this list.
        remaining_ranks[:] = shrunk.options.global_ranks_in_group or range(shrunk.size())
        name = metadata["original_group_name"]
        shrunk.setGroupName(metadata["new_group_name"])
        shrunk.setGroupDesc("default:shrunken" if is_default_group else f"{name}:shrunk")
        return shrunk

    return create


def _world() -> Any:
    import torch.distributed as dist

    return dist.group.WORLD


# ---------------------------------------------------------------- DistributedDataParallel

_BF16_HOOKS = "bf16_compress_hook", "bf16_compress_wrapper_hook"


def _register_builtin_hook(original: Function, group_type: type[Any]) -> Function:
    def register(self: Any, comm_hook_type: Any) -> None:
        import torch.distributed as dist

        fp16 = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
        if not (fp16 and isinstance(self.process_group, group_type)):
            original(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.register_comm_hook(self.process_group, fp16_compress_hook)
        # DDP's logging data names the hook that the user asked for.
        self.logger._set_comm_hook_name(str(comm_hook_type))

    return register


def _check_hook(original: Function, group_type: type[Any]) -> Function:
    def check(self: Any, hook: Function) -> None:
        if isinstance(self.process_group, group_type) and _name_of(hook) in _BF16_HOOKS:
            hook = _without_name(hook)
        original(self, hook)

    return check


def _name_of(hook: Function) -> str:
    return getattr(hook, "__name__", "")


def _without_name(hook: Function) -> Function:
    """Return a function of the same signature and another name."""

    def unnamed(*arguments: object) -> object:
        return hook(*arguments)

    unnamed.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
    return unnamed


def _keep_forward_work(original: Function, group_type: type[Any]) -> Function:
    works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: Any, work: Any, *arguments: Any) -> None:
        works[reducer] = work
        original(reducer, work, *arguments)

    return set_forward_pass_work_handle


# ---------------------------------------------------------------- functional collectives, compile

_libraries: list[Any] = []
"""Registrations of kernels; each lasts as long as its object."""


def _register_kernel(name: str, kernel: Function) -> None:
    import torch

    if hasattr(torch.ops._c10d_functional, name):
        library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
        library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
        _libraries.append(library)


def _implement_all_gather_out(group_type: type[Any]) -> None:
    from torch._C._distributed_c10d import AllgatherOptions, _resolve_process_group

    from hccl_py.torch_backend.work import register_for_wait_tensor

    def all_gather_into_tensor_out(
        tensor: Any, group_size: int, group_name: Any, *, out: Any
    ) -> Any:
        group: Any = _resolve_process_group(group_name)
        register_for_wait_tensor(out, group.all_gather_single(out, tensor, AllgatherOptions()))
        return out

    _register_kernel("all_gather_into_tensor_out", all_gather_into_tensor_out)


def _implement_batch_p2p(group_type: type[Any]) -> None:
    from torch._C._distributed_c10d import _resolve_process_group

    from hccl_py.torch_backend.work import register_for_wait_tensor

    def batch_p2p_ops(
        op_list: Sequence[str],
        peer_list: Sequence[int],
        tag_list: Sequence[int],
        tensors: Sequence[Any],
        group_name: Any,
    ) -> list[Any]:
        group: Any = _resolve_process_group(group_name)
        for op, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
            start = group.send if op == "isend" else group.recv
            register_for_wait_tensor(tensor, start([tensor], peer, tag))
        return list(tensors)

    _register_kernel("batch_p2p_ops", batch_p2p_ops)


def _exclude_from_dynamo(group_type: type[Any]) -> None:
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
            while isinstance(function, FunctionType) and function.__module__.startswith("hccl_py."):
                yield from _nested(function.__code__)
                function = getattr(function, "__wrapped__", None)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


# ---------------------------------------------------------------- the list

_C10D = "torch.distributed.distributed_c10d"
_DDP = "torch.nn.parallel.distributed.DistributedDataParallel"

AT_IMPORT = Patch(
    "torch.distributed.Backend.register_backend",
    "torch replaces a backend of the same name without a word; hccl-py warns when another package "
    f'registers "{NAME}" after it. `import torch` applies this one.',
)

PATCHES = (
    Patch(
        f"{_C10D}.monitored_barrier",
        "torch raises ValueError for every backend whose name is not gloo.",
        replacement=_monitored_barrier,
    ),
    Patch(
        f"{_C10D}._set_pg_timeout",
        "torch sets the timeout of gloo and nccl only, and warns for all others.",
        replacement=_set_timeout,
    ),
    Patch(
        f"{_C10D}.split_group",
        "torch splits only groups that are bound to an accelerator.",
        replacement=_split_group,
    ),
    Patch(
        f"{_C10D}._coalescing_manager",
        "after an exception in the block torch keeps all later calls of the group for the batch "
        "that has failed, and never runs them.",
        replacement=_coalescing_manager,
    ),
    Patch(
        f"{_C10D}._create_shrunk_process_group",
        "torch wraps what `shrink` returns in a C++ group, which takes only a C++ backend, and "
        "reads the excluded ranks of the group as ranks of the default group.",
        replacement=_create_shrunk_group,
    ),
    Patch(
        f"{_DDP}._register_builtin_comm_hook",
        "the fp16 hook in C++ expects a C++ list of tensors in the future, which no future that "
        "Python completes holds, and the backward pass fails. The same hook in Python takes over.",
        replacement=_register_builtin_hook,
    ),
    Patch(
        f"{_DDP}._check_comm_hook",
        "torch asks the name of a hook, and requires NCCL or XCCL for the bf16 hooks.",
        replacement=_check_hook,
    ),
    Patch(
        "torch.distributed.Reducer._set_forward_pass_work_handle",
        "DDP's join hands a Work to C++, which keeps only the C++ half. After Python drops the "
        "Work, C++ waits in its base class for ever. The patch keeps the Work.",
        replacement=_keep_forward_work,
    ),
    Patch(
        "torch.ops._c10d_functional.all_gather_into_tensor_out",
        "torch calls a method of the C++ group that no Python group can override.",
        apply=_implement_all_gather_out,
    ),
    Patch(
        "torch.ops._c10d_functional.batch_p2p_ops",
        "torch calls methods of the C++ group that no Python group can override.",
        apply=_implement_batch_p2p,
    ),
    Patch(
        "torch._C._dynamo.eval_frame",
        "DDP's reducer calls `broadcast` of a group while Dynamo compiles, and Dynamo fails on "
        "objects of hccl-py. hccl-py marks its own functions as not to be compiled.",
        apply=_exclude_from_dynamo,
    ),
)

_lock = threading.Lock()
_applied = False


def apply_all(group_type: type[Any]) -> None:
    """Make every change that is not made yet.

    Args:
        group_type: of the process groups that are written in Python.
    """
    global _applied
    with _lock:
        if not _applied:
            for patch in PATCHES:
                patch.make(group_type)
            _applied = True


def main() -> None:
    """Print the list."""
    for patch in (AT_IMPORT, *PATCHES):
        print(f"{patch.target}\n    torch {patch.torch}: {patch.reason}")


if __name__ == "__main__":
    main()
