"""What torch needs changed since 2.14, where a Python class can be a backend."""

from typing import Any

import torch.distributed as dist

from hccl_py.torch_backend.compat.patch import Function, Patch
from hccl_py.torch_backend.groups.backend import RECORDS, backend_of
from hccl_py.torch_backend.work import is_searching, work_behind


def _ask_work_behind(name: str) -> Function:
    def asked(original: Function, work: Any) -> Any:
        """C++ wraps the Work of a backend in Python, and forwards only wait and get_future."""
        found = work_behind(work)
        return original(work) if found is None else getattr(found, name)()

    return asked


def _get_future(original: Function, work: Any) -> Any:
    """C++ returns another object for the future, so calls of its callbacks have no order.

    PowerSGD's callbacks make such calls.
    """
    found = None if is_searching() else work_behind(work)
    return original(work) if found is None else found.get_future()


def _new_window(original: Function, group: Any, tensor: Any = None) -> Any:
    """C++ takes only its own windows, and torch's Window has no constructor in Python.

    It also asks the group's default backend, whatever the tensor's device.
    """
    part = backend_of(group)
    if part is not None:
        devices = group._device_types if tensor is None else [tensor.device]
        asked = [one for one in map(group._get_backend, devices) if one.supports_window]
        if all(one is part for one in asked):
            return part.new_window(tensor)
    return original(group, tensor)


def _supports_window(original: Function, group: Any = None) -> Any:
    """Torch asks the group's default backend only."""
    return original(group) or backend_of(group or dist.group.WORLD) is not None


def _attach_recorder(original: Function, group: Any, *rest: Any) -> Any:
    """Torch 2.14 records each call once for each recorder, and a group of hccl has one already."""
    return getattr(backend_of(group), "recorder", None) or original(group, *rest)


PATCHES = tuple(
    Patch(f"torch._C._distributed_c10d.Work.{name}", _ask_work_behind(name))
    for name in (
        *("is_completed", "is_success", "exception", "result"),
        *("synchronize", "source_rank", "_source_rank", "_get_sequence_number"),
    )
) + (
    Patch("torch._C._distributed_c10d.Work.get_future", _get_future),
    Patch("torch._C._distributed_c10d.ProcessGroup.new_window", _new_window),
    Patch("torch.distributed.distributed_c10d._supports_window", _supports_window),
)
if RECORDS:
    _ATTACH = "torch._C._distributed_c10d.FlightRecorderHook.attach"
    PATCHES += (Patch(_ATTACH, _attach_recorder),)
