"""Lightning: the strategies "hccl" (DDP) and "hccl_fsdp2", of Trainer and of Fabric.

`import lightning` registers them, under either of its two names. They take any number of devices
and nodes, and any environment, like Lightning's own.
"""

import inspect
from types import ModuleType
from typing import Any

from hccl_py.torch_backend import ALIAS


def adapt(strategies: ModuleType) -> None:
    """Register the strategies in `lightning.pytorch.strategies` or
    `lightning.fabric.strategies`."""
    registry: Any = getattr(strategies, "StrategyRegistry", None)
    if registry is None:
        registry = strategies.STRATEGY_REGISTRY  # Fabric's
    registry.register(
        "hccl", strategies.DDPStrategy, "DDP over hccl-py", process_group_backend=ALIAS
    )
    registry.register("hccl_fsdp2", _fsdp2(strategies.ModelParallelStrategy), "FSDP2 over hccl-py")


def _fsdp2(model_parallel: Any) -> Any:
    """Return Lightning's ModelParallelStrategy, with all ranks in the dimension "data_parallel"."""

    class HcclFsdp2Strategy(model_parallel):  # type: ignore[misc]
        """Shards over all ranks. A program of Trainer calls `fully_shard` in `configure_model`
        with `self.device_mesh["data_parallel"]`; Fabric's model is sharded as a whole.
        """

        def __init__(self, **named: Any) -> None:
            named.setdefault("process_group_backend", ALIAS)
            if "parallelize_fn" in inspect.signature(model_parallel.__init__).parameters:
                named.setdefault("parallelize_fn", _shard)
            super().__init__(**named)

        _data_parallel_size: Any
        _tensor_parallel_size: Any

        def setup_environment(self) -> None:
            if self._data_parallel_size == self._tensor_parallel_size == "auto":
                self._data_parallel_size = self.num_nodes * self.num_processes
                self._tensor_parallel_size = 1
            super().setup_environment()

    return HcclFsdp2Strategy


def _shard(module: Any, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, mesh=mesh["data_parallel"])
