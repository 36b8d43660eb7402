"""Two communication hooks of DDP that torch gives to its own backends only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_BF16_NAMES = "bf16_compress_hook", "bf16_compress_wrapper_hook"


def mend_ddp_hooks(group_type: type[Any]) -> None:
    """Let DDP over a group in Python have the built-in fp16 hook and the bf16 ones.

    Args:
        group_type: of the groups that need it.
    """
    _mend_builtin_hook(group_type)
    _mend_hook_check(group_type)


def _mend_builtin_hook(group_type: type[Any]) -> None:
    """Register the fp16 hook in Python in the place of the one in C++.

    That one reads a future's value as C++ tensors without asking, and no future that is completed
    from Python holds such.
    """
    original: Any = getattr(DistributedDataParallel, "_register_builtin_comm_hook", None)
    if original is None:
        return

    def register(self: Any, comm_hook_type: Any) -> None:
        fp16 = comm_hook_type == dist.BuiltinCommHookType.FP16_COMPRESS  # type: ignore[attr-defined]
        if not (fp16 and isinstance(self.process_group, group_type)):
            original(self, comm_hook_type)
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        self.register_comm_hook(self.process_group, fp16_compress_hook)

    DistributedDataParallel._register_builtin_comm_hook = register  # type: ignore[method-assign]


def _mend_hook_check(group_type: type[Any]) -> None:
    """Check a bf16 hook like any other: torch asks of its name whether NCCL is there."""
    original: Any = getattr(DistributedDataParallel, "_check_comm_hook", None)
    if original is None:
        return

    def check(self: Any, hook: Callable[..., Any]) -> None:
        if isinstance(self.process_group, group_type) and _name(hook) in _BF16_NAMES:
            hook = _nameless(hook)
        original(self, hook)

    DistributedDataParallel._check_comm_hook = check  # type: ignore[method-assign]


def _name(hook: Callable[..., Any]) -> str:
    return getattr(hook, "__name__", "")


def _nameless(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same signature and of no name that means something to torch."""

    def stand_in(*arguments: object) -> object:
        return hook(*arguments)

    stand_in.__signature__ = inspect.signature(hook)  # type: ignore[attr-defined]
    return stand_in
