"""The names under which torch knows this backend."""

from __future__ import annotations

NAME = "hccl"
ALIAS = "hccl_py"
"""Always registered: Habana's and Ascend's plug-ins register `NAME` too, and the last one wins."""


def owns(name: str) -> bool:
    """Return whether torch's backend of this name is hccl-py's."""
    import torch.distributed as dist

    plugin = dist.Backend._plugins.get(name.upper())
    return plugin is not None and plugin.creator_fn.__module__ == "hccl_py._autoload"
