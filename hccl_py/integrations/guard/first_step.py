"""Starts the guard when an optimizer first steps in a job of several ranks, whatever its backend.

`import torch` runs `await_first_step` in every program, so this file imports no other of hccl_py.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


def await_first_step() -> None:
    """Look for other ranks once, at the first step that is not compiled."""

    def look(*called: Any) -> None:
        if torch.compiler.is_compiling():
            return
        silence(handle)
        if has_ranks() or launched_ranks() > 1:
            importlib.import_module("hccl_py.integrations.guard.guard").start(handle, *called)

    handle = register_optimizer_step_pre_hook(look)


def has_ranks() -> bool:
    """Return whether the default group has several ranks."""
    from torch import distributed

    return distributed.is_initialized() and distributed.get_world_size() > 1


def launched_ranks() -> int:
    """Return WORLD_SIZE, which a launcher sets; 1 if it is not a number."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdigit() else 1


def replace(handle: RemovableHandle, hook: Callable[..., None]) -> None:
    """Put a hook in the place of another; a removal would break a step that runs the hooks."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = hook


def silence(handle: RemovableHandle) -> None:
    """Put a hook that does nothing in the place of another."""
    replace(handle, _nothing)


def _nothing(*_: object) -> None:
    pass
