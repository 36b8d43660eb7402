"""The training framework of this process, whether it treats a rank as alone, and the remedy."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_SWITCH = "hccl-launch --replace-gloo (HCCL_REPLACE=gloo)"


class Framework(NamedTuple):
    """A framework, and how to train with it on hccl.

    Attributes:
        modules: programs that train with the framework import one of them.
        name: for messages.
        remedy: the code that the user should write.
        works_alone: returns whether the framework treats this rank as the job's only process.
    """

    modules: tuple[str, ...]
    name: str
    remedy: str
    works_alone: Callable[[], bool] = lambda: False


def recognise() -> Framework | None:
    """Return the framework that trains here, if it is known."""
    return next((each for each in _KNOWN if not sys.modules.keys().isdisjoint(each.modules)), None)


def _accelerate_works_alone() -> bool:
    state: Any = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    kind = getattr(state, "_shared_state", {}).get("distributed_type")
    return getattr(kind, "value", kind) == "NO"


def _ignite_works_alone() -> bool:
    """Return whether `auto_model` leaves models unwrapped: it does for unknown backends."""
    model: Any = getattr(sys.modules.get("ignite.distributed.utils"), "_model", None)
    if hasattr(getattr(sys.modules.get("ignite.distributed"), "auto_model", None), "__wrapped__"):
        return False
    return model is not None and model.backend() in ("hccl", "hccl_py")


_KNOWN = (
    Framework(
        ("transformers.trainer",),
        "the Trainer of transformers",
        f"use TrainingArguments(use_cpu=True) without ddp_backend under {_SWITCH}, or call "
        'init_process_group("hccl") before TrainingArguments(use_cpu=True)',
        _accelerate_works_alone,
    ),
    Framework(
        ("accelerate.state",),
        "Accelerate",
        f"use Accelerator(cpu=True) without a backend under {_SWITCH}, or call "
        'init_process_group("hccl") before Accelerator(cpu=True)',
        _accelerate_works_alone,
    ),
    Framework(
        ("ignite.distributed.utils",),
        "ignite",
        f'use idist.Parallel(backend="gloo") under {_SWITCH}, or wrap the model in '
        "DistributedDataParallel yourself",
        _ignite_works_alone,
    ),
    Framework(
        ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
        "Lightning",
        'use Trainer(strategy="hccl", devices=N, num_nodes=M)',
    ),
    Framework(
        ("deepspeed.runtime.engine",),
        "DeepSpeed",
        "train the engine of deepspeed.initialize(): engine.backward(loss), engine.step()",
    ),
)
"""The first imported one counts, so a framework precedes the ones it is built on."""

ANY = "wrap the model in DistributedDataParallel or hccl_py.fast_ddp, or average gradients yourself"
"""The remedy where no framework is known."""
