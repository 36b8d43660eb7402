"""What torch needs changed since 2.14, where a Python class can be a backend."""

from __future__ import annotations

from typing import Any

from hccl_py.torch_backend.compat.patch import Function, Patch
from hccl_py.torch_backend.work import work_behind


def _ask_work_behind(name: str) -> Function:
    def asked(original: Function, work: Any) -> Any:
        """C++ wraps the Work of a backend in Python, and forwards only wait and get_future."""
        found = work_behind(work)
        return original(work) if found is None else getattr(found, name)()

    return asked


PATCHES = tuple(
    Patch(f"torch._C._distributed_c10d.Work.{name}", _ask_work_behind(name))
    for name in (
        *("is_completed", "is_success", "exception", "result"),
        *("synchronize", "source_rank", "_source_rank"),
    )
)
