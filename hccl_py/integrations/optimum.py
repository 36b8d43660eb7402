"""Optimum Habana: its Accelerator wraps the model in DDP also on the CPU.

It does so for a job of Gaudis alone. With `hccl-launch --habana-shim` Accelerate has a job of CPUs,
in which each rank would train a model of its own. The import of its Accelerator applies this.
"""

import os
from types import ModuleType, SimpleNamespace
from typing import Any


def adapt(accelerator: ModuleType) -> None:
    """Have `optimum.habana.accelerate.accelerator` take a job of CPUs for one of Gaudis."""
    if os.environ.get("HCCL_HABANA_SHIM") == "1":
        kinds: Any = accelerator.DistributedType
        accelerator.DistributedType = SimpleNamespace(  # type: ignore[attr-defined]
            **{**kinds.__members__, "MULTI_HPU": kinds.MULTI_CPU}
        )
