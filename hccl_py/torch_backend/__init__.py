"""The torch.distributed backend "hccl". Only this folder and what stands above it import torch.

process_group   the collectives that torch calls; read first
identity        what else torch asks a group
arguments       the arguments of a call as plain buffers
submit, work    checked calls on the communicator, and torch's Work
lifecycle       makes and ends the groups of a process
fast_ddp, registered_tensors   models whose gradients or buffers lie in registered memory
patches         everything that is changed in torch
staging/        tensors of an accelerator, through host memory

This file holds the names under which torch knows this backend; importing it imports no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

NAME = "hccl"
ALIAS = "hccl_py"
"""Always registered: Habana's and Ascend's plug-ins register `NAME` too, and the last one wins."""


def owns(name: str) -> bool:
    """Return whether torch's backend of this name is hccl-py's."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get(name.upper())
    return plugin is not None and plugin.creator_fn.__module__ == "hccl_py._autoload"


def watch_backend_names(creator: Callable[..., Any], warn: Callable[[], None]) -> None:
    """Torch replaces a backend of the same name without a word; hccl-py warns, once, when another
    package registers "hccl" after it. `import torch` applies this one.
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
