"""What torch needs changed before 2.14. Delete this file with the support of torch 2.13."""

import inspect
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, _resolve_process_group

from hccl_py.torch_backend.compat.patch import Function, Patch, implement
from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.torch_backend.groups.process_group import ProcessGroupHccl
from hccl_py.torch_backend.work import register_for_wait_tensor


def _monitored_barrier(original: Function, group: Any = None, *rest: Any, **named: Any) -> Any:
    """Torch raises ValueError for every backend whose name is not gloo."""
    asked = group or dist.group.WORLD
    if not isinstance(asked, ProcessGroupHccl):
        return original(group, *rest, **named)
    return asked.monitored_barrier(*rest, **named)


def _set_timeout(original: Function, timeout: timedelta, group: Any = None) -> Any:
    """Torch sets the timeout of gloo and nccl only, and warns for all others."""
    asked = group or dist.group.WORLD
    if not isinstance(asked, ProcessGroupHccl):
        return original(timeout, group)
    return asked.set_timeout(timeout)


def _check_hook(original: Function, ddp: Any, hook: Function) -> None:
    """Torch checks a hook's name, and requires NCCL or XCCL for the bf16 hooks."""

    def unnamed(*arguments: object) -> object:
        return hook(*arguments)

    name = getattr(hook, "__name__", "")
    bf16 = name in ("bf16_compress_hook", "bf16_compress_wrapper_hook")
    if bf16 and backend_of(ddp.process_group):
        unnamed.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
        original(ddp, unnamed)
    else:
        original(ddp, hook)


def _all_gather_into_tensor_out(tensor: Any, group_size: int, group_name: Any, *, out: Any) -> Any:
    """Torch calls a method of the C++ group that no Python group can override."""
    group: Any = _resolve_process_group(group_name)
    register_for_wait_tensor(out, group.all_gather_single(out, tensor, AllgatherOptions()))
    return out


_C10D = "torch.distributed.distributed_c10d"

PATCHES = (
    Patch(f"{_C10D}.monitored_barrier", _monitored_barrier),
    Patch(f"{_C10D}._set_pg_timeout", _set_timeout),
    Patch("torch.nn.parallel.distributed.DistributedDataParallel._check_comm_hook", _check_hook),
    Patch(
        "torch.ops._c10d_functional.all_gather_into_tensor_out",
        _all_gather_into_tensor_out,
        implement,
    ),
)
