"""The tensors of one collective call, checked and made into plain buffers.

A wrong argument raises `InvalidArgumentError` before anything is sent, so the group stays usable.
The error names the argument, what was expected and what came. Tensors that are not plain memory
(strided, conjugated, 8-bit floats times a factor) are staged through a contiguous copy, and
`Call.copies` lists what to write back at the end. All this happens on the tensors' device.
`staging/` moves tensors of an accelerator to the host and back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hccl_py.torch_backend import ALIAS, NAME, owns
from hccl_py.torch_backend.types import (
    OPS_BY_NAME,
    PLAIN_TYPES,
    TensorLists,
    Tensors,
)
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

_WIDENED = {
    getattr(torch, name): torch.float32
    for name in dir(torch)
    if name.startswith("float8_") and isinstance(getattr(torch, name), torch.dtype)
}

_UNPINNED = ("mps",)
"""Accelerators without streams that copy to pinned memory."""


def is_fake(tensor: Tensor) -> bool:
    """Return whether `tensor` has a shape but no memory (torch.compile and meta tracing)."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


class Call:
    """The buffers of one collective call.

    Attributes:
        name: torch's name of the method, for messages.
        results: the caller's output tensors, the value of the Work's future.
        copies: (caller's tensor, staged contiguous tensor) to be written back at the end.
        device: the accelerator that tensors of the call lie on, None: all are in host memory.
        fake: some tensor has no memory (a FakeTensor, the device meta); nothing may be sent.
    """

    __slots__ = ("_config", "_other_backends", "copies", "device", "fake", "name", "results")

    def __init__(
        self, name: str, other_backends: Mapping[str, str] | None = None, config: str = ""
    ) -> None:
        """Start a call without buffers.

        Args:
            name: of torch's method.
            other_backends: the backends of device types whose tensors are rejected.
            config: what the user asked for, as torch writes it, for example "cpu:gloo,cuda:hccl".
        """
        self.name = name
        self._other_backends = other_backends
        self._config = config
        self.results: list[Tensor] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self.device: torch.device | None = None
        self.fake = False

    def invalid(self, message: str) -> InvalidArgumentError:
        """Return the error to raise for a wrong argument of this call."""
        return InvalidArgumentError(f"{self.name}: {message}")

    def input(self, argument: str, tensor: Tensor, *, like: Tensor | None = None) -> Tensor:
        """Return a contiguous buffer that holds the values of `tensor`, itself where it fits."""
        tensor = self._checked(argument, tensor, like)
        return tensor if self._is_dense(tensor) else _dense_copy(tensor)

    def output(self, argument: str, tensor: Tensor, *, like: Tensor | None = None) -> Tensor:
        """Return a contiguous buffer for the new values of `tensor`; the old ones are not kept."""
        tensor = self._checked(argument, tensor, like)
        self.results.append(tensor)
        if self._is_dense(tensor):
            return tensor
        staged = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._write_back(argument, tensor, staged)

    def in_out(self, argument: str, tensor: Tensor) -> Tensor:
        """Return a contiguous buffer with the values of `tensor`, where the result goes too."""
        tensor = self._checked(argument, tensor, None)
        self.results.append(tensor)
        if self._is_dense(tensor):
            return tensor
        return self._write_back(argument, tensor, _dense_copy(tensor))

    def contribution(
        self, argument: str, tensor: Tensor, factor: Any, *, like: Tensor | None = None
    ) -> Tensor:
        """Return `tensor` as a buffer to be reduced, times `factor` (8-bit floats as float32)."""
        return self._reducible(self.input(argument, tensor, like=like), factor)

    def accumulator(self, argument: str, tensor: Tensor, factor: Any = None) -> Tensor:
        """Return `tensor` as a buffer to be reduced, where the result goes too."""
        buffer = self.in_out(argument, tensor)
        reducible = self._reducible(buffer, factor)
        if reducible is not buffer:
            # First out of this copy, then (listed already) out of the contiguous one.
            self.copies.insert(0, (buffer, reducible))
        return reducible

    def _reducible(self, buffer: Tensor, factor: Any) -> Tensor:
        wide_dtype = _WIDENED.get(buffer.dtype)
        if self.fake or factor is None:
            return buffer
        # 8-bit floats: every product is kept in 32 bits, and the result is rounded once.
        return self.scaled(buffer.detach().to(wide_dtype or buffer.dtype), factor)

    def scaled(self, values: Tensor, factor: Any) -> Tensor:
        """Return `values` times the factor of PREMUL_SUM."""
        scaled = values * (factor.reshape(()) if isinstance(factor, Tensor) else factor)
        if scaled.dtype != values.dtype:
            raise self.invalid(
                f"`op` PREMUL_SUM of {values.dtype} needs a factor of that type, got {factor!r}"
            )
        return scaled

    def only(self, argument: str, tensors: Tensors | None, other: Tensors | None = None) -> Tensor:
        """Return the one tensor of `other` or else `tensors`; torch passes one per device."""
        given = tensors if other is None else other
        if isinstance(given, Tensor):
            return given
        if given is None:
            raise self.invalid(f"`{argument}` must be a tensor, got none")
        if len(given) != 1:
            raise self.invalid(f"`{argument}` must be one tensor, got a list of {len(given)}")
        return given[0]

    def blocks(self, argument: str, lists: TensorLists | None, count: int) -> Sequence[Tensor]:
        """Return the `count` tensors of `lists`, a list of tensors or a list of one such list."""
        blocks: Any = lists or ()
        if len(blocks) == 1 and not isinstance(blocks[0], Tensor):
            blocks = blocks[0]
        if len(blocks) != count:
            raise self.invalid(
                f"`{argument}` must be {count} tensors, one per rank, got {len(blocks)}"
            )
        result: Sequence[Tensor] = blocks
        return result

    def lists(
        self, argument: str, lists: Sequence[Sequence[Tensor]], count: int
    ) -> Sequence[Sequence[Tensor]]:
        """Return `lists`, which must be `count` of them."""
        if len(lists) != count:
            raise self.invalid(
                f"`{argument}` must be {count} lists, one per rank, got {len(lists)}"
            )
        return lists

    def no_blocks(self, argument: str, lists: TensorLists, root: int) -> None:
        """Raise if `lists` holds tensors although this rank is not the root."""
        if len(lists) > 1 or (len(lists) == 1 and len(lists[0]) > 0):
            raise self.invalid(f"`{argument}` must be given on the root (rank {root}) only")

    def rows(
        self, argument: str, buffer: Tensor, sizes: Sequence[int], count: int
    ) -> Sequence[Tensor]:
        """Return `buffer` cut along dimension 0 into `count` parts, of `sizes` or equal ones."""
        shape = tuple(buffer.shape)
        if not shape:
            raise self.invalid(f"`{argument}` must have at least one dimension, got a scalar")
        if not len(sizes):  # an array of numpy, which has no truth value, will do
            if shape[0] % count:
                raise self.invalid(
                    f"`{argument}` must have a number of rows divisible by {count} "
                    f"ranks, or come with split sizes; got shape {shape}"
                )
            sizes = [shape[0] // count] * count
        if len(sizes) != count or min(sizes) < 0 or sum(sizes) != shape[0]:
            raise self.invalid(
                f"`{argument}_split_sizes` must be {count} sizes that add up to "
                f"{shape[0]}, the rows of `{argument}`; got {list(sizes)}"
            )
        parts: Sequence[Tensor] = buffer.detach().split(list(sizes))  # type: ignore[no-untyped-call]
        return parts

    def same_length(
        self, name: str, items: Sequence[Tensor], other_name: str, others: Sequence[Tensor]
    ) -> None:
        """Raise unless both lists have the same number of tensors."""
        if len(items) != len(others):
            raise self.invalid(
                f"`{name}` must have {len(others)} tensors as `{other_name}` has, got {len(items)}"
            )

    def rank(self, argument: str, rank: int, world_size: int) -> int:
        """Return `rank` if it is one of the group."""
        if 0 <= rank < world_size:
            return rank
        raise self.invalid(
            f"`{argument}` must be a rank of this group, 0 to {world_size - 1}, got {rank}"
        )

    def same_size(self, argument: str, tensor: Tensor, count: int, why: str) -> None:
        """Raise unless `tensor` has `count` elements."""
        if tensor.numel() != count:
            raise self.invalid(
                f"`{argument}` must have {count} elements ({why}), "
                f"got {tensor.numel()} (shape {tuple(tensor.shape)})"
            )

    def require_own_device(self, tensor: Tensor) -> None:
        """Raise if torch was to hand tensors on this device to another backend."""
        if not self._other_backends:
            return
        other = self._other_backends.get(tensor.device.type)
        if other is not None:
            raise self.invalid(
                f"got a tensor on {tensor.device}, which is for {other} in the backend "
                f'"{self._config}" of this group; but torch gives a group with hccl in it to hccl '
                "alone. Make a second group for such tensors, "
                f'torch.distributed.new_group(backend="{other}"), and pass it as `group`; or write '
                f'backend="{NAME if owns(NAME) else ALIAS}", which takes them itself'
            )

    def _checked(self, argument: str, tensor: Tensor, like: Tensor | None) -> Tensor:
        if type(tensor) not in PLAIN_TYPES:
            tensor = self._unwrapped(argument, tensor)
        self.require_own_device(tensor)
        if tensor.layout is not torch.strided:
            raise self.invalid(
                f"`{argument}` must be a dense tensor, got layout {tensor.layout}; pass "
                ".to_dense() of it (all_reduce takes the layout torch.sparse_coo as well)"
            )
        if not tensor.is_cpu and not self.fake:
            if tensor.is_meta:
                self.fake = True
            else:
                self._take_device(argument, tensor.device)
        if like is not None and tensor.dtype != like.dtype:
            raise self.invalid(
                f"all tensors must have one dtype: `{argument}` has {tensor.dtype}, "
                f"expected {like.dtype}"
            )
        return tensor

    def _take_device(self, argument: str, device: torch.device) -> None:
        """Remember where the tensors of this call lie, if that is an accelerator."""
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None or device.type != accelerator.type or device.type in _UNPINNED:
            known = "cpu" if accelerator is None else f"cpu or {accelerator.type}"
            raise self.invalid(
                f"`{argument}` must be on the device {known}, got {device}; pass .cpu() of it"
            )
        if self.device not in (None, device):
            raise self.invalid(
                f"all tensors of a call must be on one device: `{argument}` is on {device}, "
                f"another on {self.device}"
            )
        self.device = device

    def _unwrapped(self, argument: str, tensor: Tensor) -> Tensor:
        """Return the memory behind a subclass of Tensor that is only a label on it."""
        from torch.distributed._functional_collectives import AsyncCollectiveTensor
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass

        if not isinstance(tensor, Tensor):
            raise self.invalid(f"`{argument}` must be a tensor, got {type(tensor).__name__}")
        if is_fake(tensor):
            self.fake = True
            return tensor
        if isinstance(tensor, AsyncCollectiveTensor):
            # The result of a functional collective: its first use waits for it.
            waited: Tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
            return waited
        if is_traceable_wrapper_subclass(tensor):
            raise self.invalid(
                f"`{argument}` must be a plain tensor, got {type(tensor).__name__}, which holds "
                "others; pass the tensor inside it (a DTensor's .to_local())"
            )
        return tensor.as_subclass(Tensor)

    def _is_dense(self, tensor: Tensor) -> bool:
        return self.fake or (
            tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()
        )

    def _write_back(self, argument: str, tensor: Tensor, staged: Tensor) -> Tensor:
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise self.invalid(
                f"`{argument}` is written to, so no two of its elements may share "
                "memory (an expanded tensor); pass .contiguous()"
            )
        self.copies.append((tensor, staged))
        return staged


def _dense_copy(tensor: Tensor) -> Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def write_back(copies: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Write every staged result into the caller's tensor."""
    if not copies:
        return
    # Inference mode allows writing to leaves that require grad and to inference tensors too. The
    # caller has asked for exactly these writes.
    with torch.inference_mode():
        for tensor, staged in copies:
            tensor.copy_(staged)


def reduce_op(call: Call, options: Any) -> tuple[ReduceOp, Any]:
    """Return the operation, and the factor of PREMUL_SUM (else None)."""
    name = options.reduceOp.op.name
    if name == "PREMUL_SUM":
        return ReduceOp.SUM, options.reduceOp.factor
    ours = OPS_BY_NAME.get(name)
    if ours is None:
        raise call.invalid(f"`op` must be one of {list(OPS_BY_NAME)}, got {options.reduceOp.op}")
    return ours, None
