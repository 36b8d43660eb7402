"""Tell torch that the backend "hccl" exists; torch calls `register` at the end of `import torch`.

An exception here would break `import torch` for every program on the machine, and a slow import
would slow all of them: so nothing is imported before a group is really made, and nothing raises.
"""

from __future__ import annotations

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
        import warnings

        warnings.warn(f"hccl_py could not register its backend with torch: {error!r}", stacklevel=2)


def _register() -> None:
    import torch.distributed as dist

    if not dist.is_available() or ALIAS in dist.Backend.backend_list:
        return
    taken = NAME in dist.Backend.backend_list
    for name in (ALIAS,) if taken else (ALIAS, NAME):
        # `devices` has to be a list: torch reads the string "cpu" as the devices c, p and u.
        dist.Backend.register_backend(name, _create, extended_api=True, devices=["cpu"])
    if taken:
        import warnings

        warnings.warn(
            f'another package has registered the torch.distributed backend "{NAME}"; '
            f'use init_process_group("{ALIAS}") for hccl_py',
            stacklevel=2,
        )


def _create(options: Any, backend_options: Any) -> ProcessGroup:
    from hccl_py.torch_groups import create

    return create(options, backend_options)
