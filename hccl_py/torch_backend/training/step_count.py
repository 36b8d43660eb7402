"""Counts the steps of torch's optimizers, for the status line of hccl-launch."""

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from hccl_py.progress_file import PROGRESS
from hccl_py.transport.network.emulated import emulation

_is_counting = False


def count_steps() -> None:
    """Start to count, if the launcher watches this process."""
    global _is_counting
    if PROGRESS.is_open and not _is_counting:
        _is_counting = True
        register_optimizer_step_post_hook(_count)
        if emulated := emulation():
            register_optimizer_step_post_hook(emulated.note_step)


def _count(*_: object) -> None:
    # Otherwise a compiled step would be recompiled for every new number.
    if not torch.compiler.is_compiling():
        PROGRESS.steps += 1
