"""Registers the backend "hccl" with torch, which calls `register` at the end of `import torch`.

An exception here would break `import torch` for every program on the machine, and a slow import
would slow all of them. So `register` imports almost nothing and raises nothing.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

from hccl_py.torch_backend import (
    ALIAS,
    NAME,
    adopt_rank_of_scheduler,
    is_scheduled,
    watch_backend_names,
)


def register() -> None:
    """Register the process group with torch for CPU tensors, under `ALIAS` and, if free, `NAME`.

    If another package owns `NAME`, one warning says that `ALIAS` reaches hccl-py.
    """
    try:
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
            watch_backend_names(_create, _warn_of_owner)
        if is_scheduled():
            adopt_rank_of_scheduler()
        if os.environ.get("HCCL_REPLACE"):
            from hccl_py.torch_backend.replace_gloo import replace_gloo

            replace_gloo()
        # hccl-launch imports torch for elastic jobs, and is no rank itself.
        if os.environ.get("HCCL_HABANA_SHIM") and "hccl_py.launcher" not in sys.modules:
            from hccl_py.integrations.habana import start
            from hccl_py.integrations.habana.device import map_hpu_to_cpu

            start()
            map_hpu_to_cpu()
    except Exception as error:  # never break `import torch`
        _say(f"hccl_py could not register its backend with torch: {error!r}")


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


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    from hccl_py.integrations.guard import watch
    from hccl_py.torch_backend.lifecycle import create

    group = create(options, backend_options)
    watch(group)
    return cast("ProcessGroup", group)
