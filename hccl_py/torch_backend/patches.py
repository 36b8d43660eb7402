"""Four places where torch does not expect a process group that is written in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, _register_work, _resolve_process_group


def keep_dynamo_out(*modules: ModuleType) -> None:
    """Let torch.compile run the functions of `modules` as they are instead of tracing them.

    DDP's reducer calls a group's `broadcast` while Dynamo watches frames, and Dynamo fails on our
    objects. Marking code objects costs nothing per call and does not import torch._dynamo, which
    `torch._dynamo.disable` would.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)
    for module in modules:
        for code in _codes_of(module):
            eval_frame.set_code_exec_strategy(code, skip)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def mend_all_gather_into_tensor_out() -> torch.library.Library:
    """Make the one functional collective work that bypasses Python groups (bucketed by Inductor).

    Returns:
        The registration; it lasts as long as the object.
    """
    library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]

    def all_gather_into_tensor_out(
        tensor: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
    ) -> torch.Tensor:
        group: Any = _resolve_process_group(group_name)
        work = group.all_gather_single(out, tensor, AllgatherOptions())
        _register_work(out, work)
        return out

    library.impl(  # type: ignore[no-untyped-call]
        "all_gather_into_tensor_out", all_gather_into_tensor_out, "CPU"
    )
    return library


def mend_batch_p2p_ops() -> torch.library.Library | None:
    """Make a compiled `batch_isend_irecv` work, which bypasses Python groups too.

    Returns:
        The registration, which lasts as long as the object; None: this torch has no such call.
    """
    if not hasattr(torch.ops._c10d_functional, "batch_p2p_ops"):
        return None
    library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]

    def batch_p2p_ops(
        op_list: Sequence[str],
        peer_list: Sequence[int],
        tag_list: Sequence[int],
        tensors: Sequence[torch.Tensor],
        group_name: Any,
    ) -> list[torch.Tensor]:
        # For every group of this process: another backend's have these methods, too.
        group: Any = _resolve_process_group(group_name)
        for op, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
            start = group.send if op == "isend" else group.recv
            _register_work(tensor, start([tensor], peer, tag))
        return list(tensors)

    library.impl("batch_p2p_ops", batch_p2p_ops, "CPU")  # type: ignore[no-untyped-call]
    return library


def mend_shrink_group(group_type: type[Any]) -> None:
    """Let `dist.shrink_group` take a group in Python, and number the ranks that are left rightly.

    torch would wrap what `shrink` returns in a C++ group, which only a C++ backend fits into; and
    it takes the excluded ranks, which are those of the group, for global ones.

    Args:
        group_type: of the groups that need it; `supports_shrinking` becomes true for it where this
            torch can do it.
    """
    module: Any = dist.distributed_c10d
    original = getattr(module, "_create_shrunk_process_group", None)
    if original is None:
        return

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

    module._create_shrunk_process_group = create
    group_type.supports_shrinking = True
