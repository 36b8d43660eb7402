"""ignite: "hccl" is a backend of its native computation model, and `auto_model` uses DDP with it.

`import ignite.distributed` applies this.
"""

import functools
import sys
from typing import Any

from hccl_py.torch_backend import ALIAS, NAME, owns


def adapt(_: object) -> None:
    """Add the backend to `auto_model`, and then to the computation model.

    The argument, `ignite.distributed.launcher`, is the last module that its package imports.
    """
    package, auto = sys.modules["ignite.distributed"], sys.modules["ignite.distributed.auto"]
    adapted = _with_ddp(auto.auto_model)
    for module in (package, auto):
        module.auto_model = adapted  # type: ignore[attr-defined]
    native: Any = sys.modules["ignite.distributed.comp_models.native"]
    ours = tuple(name for name in (NAME, ALIAS) if owns(name))
    native._NativeDistModel.available_backends += ours


def _with_ddp(original: Any) -> Any:
    @functools.wraps(original)
    def auto_model(model: Any, sync_bn: bool = False, **named: Any) -> Any:
        from torch import nn

        idist: Any = sys.modules["ignite.distributed"]
        name = idist.backend()
        if not owns(name) or idist.get_world_size() == 1:
            return original(model, sync_bn, **named)
        model = original(model)  # moves the model; ignite wraps models for nccl, gloo and mpi only
        if sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return nn.parallel.DistributedDataParallel(model, **named)

    return auto_model
