"""Accelerate: treats a job whose backend is hccl as a job of several CPUs.

Accelerate takes "hccl" for Gaudi's backend. On a host without an accelerator it would make the
group, and then train each rank as if it were alone; with `cpu=True` it would use gloo. `import
accelerate` applies this. `ddp_backend` of transformers' Trainer is handled here too.
"""

import functools
import os
import sys
from types import ModuleType
from typing import Any

from hccl_py.torch_backend import NAME, owns

_TRUE = ("1", "true", "yes", "on")
_IGNORED = (
    (
        *("fsdp_plugin", "ACCELERATE_USE_FSDP"),
        "it shards on accelerators only; leave it out, or shard the model with torch's fully_shard",
    ),
    (
        *("deepspeed_plugin", "ACCELERATE_USE_DEEPSPEED"),
        "leave out cpu=True and use_cpu=True, and set ACCELERATE_USE_CPU=false for hccl-launch",
    ),
)
"""Plug-ins that Accelerate ignores in a job of CPUs: argument, variable, remedy."""


def adapt(state: ModuleType) -> None:
    """Have `accelerate.state` honour hccl, and reject plug-ins that it would ignore."""
    kinds, partial, whole = state.DistributedType, state.PartialState, state.AcceleratorState
    prepare, init = partial._prepare_backend, whole.__init__

    @functools.wraps(prepare)
    def prepare_backend(
        self: Any, cpu: bool = False, sagemaker_dp: Any = False, backend: str | None = None
    ) -> tuple[str | None, Any]:
        found, kind = prepare(self, cpu, sagemaker_dp, backend)
        if kind not in (kinds.NO, kinds.MULTI_CPU):
            return found, kind  # a job on an accelerator
        ours = backend if owns(backend) else None
        if backend is None:
            ours = _backend_of_group() or _backend_of_gaudi()
        return (found, kind) if ours is None else (ours, kinds.MULTI_CPU)

    @functools.wraps(init)
    def init_state(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        if self.distributed_type == kinds.MULTI_CPU and _backend_of_group():
            for plugin, variable, remedy in _IGNORED:
                if named.get(plugin) or os.environ.get(variable, "").lower() in _TRUE:
                    raise ValueError(f"Accelerate would ignore {plugin} and use DDP here: {remedy}")

    partial._prepare_backend, whole.__init__ = prepare_backend, init_state


def _backend_of_gaudi() -> str | None:
    """Return the backend that Accelerate chooses on a Gaudi, for its programs on the CPU."""
    from torch import distributed

    is_shimmed = os.environ.get("HCCL_HABANA_SHIM") == "1"
    return NAME if is_shimmed and owns(NAME) and not distributed.is_initialized() else None


def _backend_of_group() -> str | None:
    """Return the name of the default group's backend if the group is hccl's."""
    from torch import distributed

    loaded: Any = sys.modules.get("hccl_py.torch_backend.groups.process_group")
    if loaded is None or not isinstance(distributed.group.WORLD, loaded.ProcessGroupHccl):
        return None
    return distributed.get_backend()
