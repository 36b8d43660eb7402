"""Brings all ranks to the parameters and optimizer state of one."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from hccl_py.horovod.collectives.move import Broadcast
from hccl_py.horovod.objects import broadcast_object
from hccl_py.horovod.process_sets import global_process_set
from hccl_py.horovod.torch.tensors import IN_PLACE
from hccl_py.transport.errors import InvalidArgumentError


class _Slot(NamedTuple):
    """Where a tensor stands in an optimizer's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    place: int


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]], root_rank: int
) -> None:
    """Overwrite tensors with those of `root_rank`, on all ranks.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
        root_rank: a rank.
    """
    if isinstance(params, Mapping):
        tensors = [params[name] for name in sorted(params)]
    else:
        tensors = [each[1] if isinstance(each, tuple) else each for each in params]
    strange = [type(each).__name__ for each in tensors if not isinstance(each, Tensor)]
    if strange:
        raise InvalidArgumentError(f"params: expected tensors, got {', '.join(strange)}")
    Broadcast(root_rank, global_process_set).start(IN_PLACE, tensors).wait()


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Load the optimizer state of `root_rank`, on all ranks; it may be empty anywhere.

    Args:
        optimizer: of torch, or a DistributedOptimizer.
        root_rank: a rank.
        model: not used.
    """
    state_dict = optimizer.state_dict()
    tensors: list[Tensor] = []
    described = broadcast_object(_described(state_dict, tensors), root_rank)
    is_root = global_process_set.communicator.rank == root_rank
    if not is_root:
        tensors = []
        state_dict = _filled(described, tensors)
    broadcast_parameters(tensors, root_rank)
    if not is_root:
        optimizer.load_state_dict(state_dict)


def _described(value: Any, tensors: list[Tensor]) -> Any:
    """Return the value with slots for its tensors, which are added to the list."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Slot(tuple(value.shape), value.dtype, len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _described(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_described(each, tensors) for each in value)
    return value


def _filled(value: Any, tensors: list[Tensor]) -> Any:
    """Undo `_described` with new tensors, which are added to the list in the same order."""
    if isinstance(value, _Slot):
        tensors.append(torch.empty(value.shape, dtype=value.dtype))
        return tensors[-1]
    if isinstance(value, dict):
        return {key: _filled(each, tensors) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(each, tensors) for each in value)
    return value
