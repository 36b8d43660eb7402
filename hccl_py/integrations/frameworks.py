"""Which framework trains in this process, whether it works alone, and what to write instead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_SWITCH = "hccl-launch --replace-gloo (HCCL_REPLACE=gloo)"


class Framework(NamedTuple):
    """A framework that this process has imported.

    Attributes:
        name: for messages.
        remedy: what the user should write.
        works_alone: the framework itself says that it is one process, in a job of several.
    """

    name: str
    remedy: str
    works_alone: bool


class _Known(NamedTuple):
    module: str  # imported by programs that train with it
    name: str
    remedy: str
    works_alone: Callable[[], bool]


def recognise() -> Framework | None:
    """Return the framework that trains here, if it is one of those known."""
    for known in _KNOWN:
        if known.module in sys.modules:
            return Framework(known.name, known.remedy, known.works_alone())
    return None


def _accelerate_works_alone() -> bool:
    state: Any = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    kind = getattr(state, "_shared_state", {}).get("distributed_type")
    return getattr(kind, "value", kind) == "NO"


def _ignite_works_alone() -> bool:
    """`auto_model` wraps no model of a backend whose name it does not know, unless adapted."""
    model: Any = getattr(sys.modules.get("ignite.distributed.utils"), "_model", None)
    if hasattr(getattr(sys.modules.get("ignite.distributed"), "auto_model", None), "__wrapped__"):
        return False
    return model is not None and model.backend() in ("hccl", "hccl_py")


def _unknown() -> bool:
    return False


_KNOWN = (
    _Known(
        "transformers.trainer",
        "the Trainer of transformers",
        f"use TrainingArguments(use_cpu=True) without ddp_backend under {_SWITCH}, or call "
        'init_process_group("hccl") before TrainingArguments(use_cpu=True)',
        _accelerate_works_alone,
    ),
    _Known(
        "accelerate.state",
        "Accelerate",
        f"use Accelerator(cpu=True) without a backend under {_SWITCH}, or call "
        'init_process_group("hccl") before Accelerator(cpu=True)',
        _accelerate_works_alone,
    ),
    _Known(
        "ignite.distributed.utils",
        "ignite",
        f'use idist.Parallel(backend="gloo") under {_SWITCH}, or wrap the model in '
        "DistributedDataParallel yourself",
        _ignite_works_alone,
    ),
    _Known(
        "lightning.pytorch.trainer.trainer",
        "Lightning",
        'use Trainer(strategy="hccl", devices=N, num_nodes=M)',
        _unknown,
    ),
    _Known(
        "pytorch_lightning.trainer.trainer",
        "Lightning",
        'use Trainer(strategy="hccl", devices=N, num_nodes=M)',
        _unknown,
    ),
    _Known(
        "deepspeed.runtime.engine",
        "DeepSpeed",
        "train the engine of deepspeed.initialize(): engine.backward(loss), engine.step()",
        _unknown,
    ),
)
"""The first that is imported counts, so a framework stands before those it is built on."""

ANY = "wrap the model in DistributedDataParallel or hccl_py.fast_ddp, or average gradients yourself"
"""What to do where no framework is known."""
