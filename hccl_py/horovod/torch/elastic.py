"""Elastic training of torch's models: `run`, `TorchState`, `ElasticSampler`."""

import copy
from typing import Any

import torch

from hccl_py.horovod.elastic import ObjectState as ObjectState
from hccl_py.horovod.elastic import State as State
from hccl_py.horovod.elastic import run as run
from hccl_py.horovod.objects import broadcast_object
from hccl_py.horovod.torch.broadcast_state import broadcast_optimizer_state, broadcast_parameters
from hccl_py.horovod.torch.sampler import ElasticSampler as ElasticSampler


class TorchState(ObjectState):
    """Models, optimizers, ElasticSamplers and other Python objects, each an attribute.

    Args:
        model: of torch.
        optimizer: of torch, or a DistributedOptimizer.
        objects: more of them by name, and any other objects.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **objects: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **objects}
        kinds = torch.nn.Module, torch.optim.Optimizer, ElasticSampler
        self._stateful = {name: it for name, it in given.items() if isinstance(it, kinds)}
        for name, value in self._stateful.items():
            setattr(self, name, value)
        super().__init__(**{name: it for name, it in given.items() if name not in self._stateful})

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace a model, optimizer or sampler, or set any attribute."""
        super().__setattr__(name, value)
        if name in vars(self).get("_stateful", ()):
            self._stateful[name] = value

    def _copied(self) -> dict[str, Any]:
        return {name: copy.deepcopy(value.state_dict()) for name, value in self._stateful.items()}

    def _load(self, copies: dict[str, Any]) -> None:
        for name, saved in copies.items():
            self._stateful[name].load_state_dict(copy.deepcopy(saved))

    def _broadcast(self) -> None:
        for value in self._stateful.values():
            if isinstance(value, torch.nn.Module):
                broadcast_parameters(value.state_dict(), root_rank=0)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root_rank=0)
            else:
                value.load_state_dict(broadcast_object(value.state_dict()))
