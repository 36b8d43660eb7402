"""transformers: `ddp_backend="hccl"` also holds with DeepSpeed, where TrainingArguments drops it.

Without DeepSpeed, Accelerate's adapter honours it. HCCL_REPLACE has the same effect for no
backend and for gloo. Without a group Accelerate would give each rank all data. `import
transformers` applies this when it loads TrainingArguments or the Trainer.
"""

import functools
import os
import sys
from datetime import timedelta
from typing import Any

from hccl_py.torch_backend import owns


def adapt(_: object) -> None:
    """Have TrainingArguments make the group itself in a DeepSpeed job."""
    arguments: Any = sys.modules["transformers.training_args"].TrainingArguments
    original = arguments.__post_init__
    if hasattr(original, "__wrapped__"):
        return  # already adapted, by its other module

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        from torch import distributed

        wanted = self.deepspeed and "RANK" in os.environ and not distributed.is_initialized()
        if wanted and (name := _ours(self.ddp_backend)):
            distributed.init_process_group(name, timeout=timedelta(seconds=self.ddp_timeout))
        original(self)

    arguments.__post_init__ = post_init


def _ours(name: str | None) -> str | None:
    """Return the backend's name if it means hccl here, else None."""
    from torch import accelerator

    if owns(name):
        return name
    from hccl_py.torch_backend.groups.replace_gloo import VALUES

    swaps = os.environ.get("HCCL_REPLACE") in VALUES and not accelerator.is_available()
    return "gloo" if swaps and name in (None, "gloo") else None
