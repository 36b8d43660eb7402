"""transformers: `ddp_backend="hccl"` counts with DeepSpeed too, where TrainingArguments drops it.

Without DeepSpeed it reaches Accelerate, whose adapter honours it. `import transformers` applies
this when it loads TrainingArguments or the Trainer.
"""

from __future__ import annotations

import functools
import os
import sys
from datetime import timedelta
from typing import Any

from hccl_py.torch_backend import ALIAS, NAME, owns


def adapt(_: object) -> None:
    """Have TrainingArguments make the group itself for a job of DeepSpeed."""
    arguments: Any = sys.modules["transformers.training_args"].TrainingArguments
    original = arguments.__post_init__
    if hasattr(original, "__wrapped__"):
        return  # adapted by the other of its two modules

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        from torch import distributed

        ours = self.ddp_backend in (NAME, ALIAS) and owns(self.ddp_backend)
        if ours and self.deepspeed and "RANK" in os.environ and not distributed.is_initialized():
            timeout = timedelta(seconds=self.ddp_timeout)
            distributed.init_process_group(self.ddp_backend, timeout=timeout)
        original(self)

    arguments.__post_init__ = post_init
