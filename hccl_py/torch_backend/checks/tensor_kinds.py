"""Finds the plain tensor behind an argument of torch.distributed."""

import torch
from torch import Tensor

from hccl_py.memory.tensor_kinds import holder, is_fake, no_memory

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
"""Every other type of tensor is a subclass, which `unwrapped` handles."""


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the plain tensor behind a subclass that only labels it.

    Raises:
        TypeError: names the kind of tensor, and what to pass instead.
    """
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    if is_fake(tensor):
        return tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        # The result of a functional collective: its first use waits for it.
        waited: Tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
        return waited
    found = holder(tensor)
    if found:
        raise TypeError(found)
    try:
        plain = tensor.as_subclass(Tensor)
    except (TypeError, RuntimeError, NotImplementedError):
        plain = tensor
    if type(plain) not in PLAIN_TYPES:
        raise TypeError(no_memory(tensor))
    return plain
