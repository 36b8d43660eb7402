"""Tell torch that the backend "hccl" exists; torch calls `register` at the end of `import torch`.

An exception here would break `import torch` for every program on the machine, and a slow import
would slow all of them: so nothing is imported before a group is really made, and nothing raises.
"""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

NAME = "hccl"
ALIAS = "hccl_py"
"""Always registered: Habana's and Ascend's plug-ins claim `NAME` too, and the last one wins."""


def register() -> None:
    """Register the process group with torch for CPU tensors, under `ALIAS` and, if free, `NAME`.

    A name that is already taken is left to its owner, and one warning says how to reach ours.
    """
    try:
        _register()
    except Exception as error:  # never break `import torch`: say it and go on without us
        _say(f"hccl_py could not register its backend with torch: {error!r}")


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available() or ALIAS in dist.Backend.backend_list:
        return
    taken = NAME in dist.Backend.backend_list
    for name in (ALIAS,) if taken else (ALIAS, NAME):
        # `devices` has to be a list: torch reads the string "cpu" as the devices c, p and u.
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu"])
    if taken:
        _warn_of_owner()
    else:
        _watch_name(dist.Backend)


def _watch_name(names: Any) -> None:
    """Say it when another package registers `NAME` later, which torch lets it do without a word."""
    original = names.register_backend

    @functools.wraps(original)
    def register_backend(name: str, func: Any, *arguments: Any, **options: Any) -> Any:
        done = original(name, func, *arguments, **options)
        # What is watched has to work whatever it was called with; torch has checked it above.
        if func is not _create and str(name).lower() == NAME:
            names.register_backend = original
            _warn_of_owner()
        return done

    # Found on the class, called as one of its class methods.
    names.register_backend = staticmethod(register_backend)


def _warn_of_owner() -> None:
    _say(
        f'another package has registered the torch.distributed backend "{NAME}"; '
        f'use init_process_group("{ALIAS}") for hccl_py'
    )


def _say(text: str) -> None:
    try:
        warnings.warn(text, stacklevel=4)
    except Warning:
        # Warnings are errors in this program; that of importing torch or another package is not.
        print(f"hccl_py: {text}", file=sys.stderr)


def owns(name: str) -> bool:
    """Tell whether torch's backend of this name is ours."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get(name.upper())
    return plugin is not None and plugin.creator_fn is _create


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    from hccl_py.torch_backend.lifecycle import create

    return create(options, backend_options)
