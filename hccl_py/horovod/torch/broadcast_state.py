"""Copies the parameters and optimizer state of one rank to all."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map_only

from hccl_py.horovod.collectives.rows import Broadcast
from hccl_py.horovod.objects import broadcast_object
from hccl_py.horovod.process_sets import global_process_set
from hccl_py.horovod.torch.tensors import IN_PLACE
from hccl_py.transport.errors import InvalidArgumentError


def broadcast_parameters(
    params: Mapping[str, Tensor] | Iterable[Tensor | tuple[str, Tensor]], root_rank: int
) -> None:
    """Overwrite tensors with `root_rank`'s, on all ranks.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`.
        root_rank: a rank.
    """
    if isinstance(params, Mapping):
        tensors = [params[name] for name in sorted(params)]
    else:
        tensors = [each[1] if isinstance(each, tuple) else each for each in params]
    wrong = [type(each).__name__ for each in tensors if not isinstance(each, Tensor)]
    if wrong:
        raise InvalidArgumentError(f"params: expected tensors, got {', '.join(wrong)}")
    Broadcast(root_rank, global_process_set).start(IN_PLACE, tensors).wait()


def broadcast_optimizer_state(
    optimizer: Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Load the optimizer state of `root_rank` on all ranks; any rank's may be empty before.

    Args:
        optimizer: of torch, or a DistributedOptimizer.
        root_rank: a rank.
        model: not used.
    """
    state = optimizer.state_dict()
    described = broadcast_object(tree_map_only(Tensor, _described, state), root_rank)
    is_root = global_process_set.communicator.rank == root_rank
    if not is_root:
        state = tree_map_only(Tensor, _empty, described)
    broadcast_parameters([it for it in tree_leaves(state) if isinstance(it, Tensor)], root_rank)
    if not is_root:
        optimizer.load_state_dict(state)


def _described(tensor: Tensor) -> Tensor:
    """Return a tensor with this one's shape and element type, and no data."""
    return torch.empty_like(tensor, device="meta", memory_format=torch.contiguous_format)


def _empty(described: Tensor) -> Tensor:
    return torch.empty_like(described, device="cpu")
