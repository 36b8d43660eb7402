"""Data parallel training with one all_reduce for all gradients: `fast_ddp(model)`.

    backward computes a gradient      it is copied to its place in one flat buffer, and the
                                      parameter's `grad` becomes that place
    backward ends                     one all_reduce averages the buffer in place

There is one buffer for each element type, in registered memory. A buffer ends with a flag for each
parameter, which the same all_reduce averages: a flag above zero says that some rank has a gradient.
If a group compresses, flags have their own call, as compression is coarse beside large values.

The model itself is returned, not a wrapper: its type, its attributes and the keys of its state_dict
are unchanged. All state is in hooks of the parameters, which copies and pickles leave behind.

Averaging is linear and keeps what is equal on all ranks. So a buffer may be averaged again after
more gradients were added to it, as gradient accumulation and reentrant checkpoints do.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable

from hccl_py.memory.registered import empty
from hccl_py.torch_backend.checks.tensor_kinds import PLAIN_TYPES
from hccl_py.torch_backend.collectives import TorchCollectives
from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.torch_backend.training.exact import ExactAccumulator
from hccl_py.transport.arguments import flag, shown
from hccl_py.transport.errors import InvalidArgumentError

if TYPE_CHECKING:
    from torch.nn import Module, Parameter

Model = TypeVar("Model", bound="Module")

_ALIGNMENT_BYTES = 64
_backward_of_thread = torch._C._current_graph_task_id
"""Returns a unique number of the backward pass, -1 outside of one."""


def fast_ddp(
    model: Model, process_group: dist.ProcessGroup | None = None, *, exact: bool = False
) -> Model:
    """Average the gradients of `model` over all ranks at the end of every backward pass.

    Rank 0's parameters and buffers are broadcast first. From then on train as in one process, each
    rank on its part of a batch; call `backward` equally often on all ranks. Gradients are views of
    one registered buffer for each element type, and one all_reduce averages that in place. Inside
    `with model.no_sync():` backward passes only add to the gradients. A second call, for another
    group, replaces the first.

    Args:
        model: on the CPU, with dense parameters, the same on all ranks; freeze parameters first.
        process_group: of the backend hccl; None: the default group.
        exact: average as an ExactAccumulator does, over all backward passes of all ranks, those
            inside `no_sync` included. These leave no gradients.

    Returns:
        `model`, the same object, with a new method `no_sync`.

    Raises:
        InvalidArgumentError: the model or the group does not fit; the message says what to do.
        DistBackendError: a rank failed. `backward` raises it too.
    """
    group = _group(process_group)
    _check(model)
    earlier = model.__dict__.get("no_sync")
    if isinstance(earlier, _NoSync):
        earlier.reducer.remove()
    parameters = list(model.named_parameters())
    buffers = list(model.named_buffers())
    _check_alike(_described(parameters, buffers), group)
    for _, tensor in (*parameters, *buffers):
        dist.broadcast(tensor.detach(), group=group, group_src=0)
    reducer = _Reducer(parameters, group, flag("exact", exact))
    model.no_sync = _NoSync(reducer)  # type: ignore[assignment]
    return model


class _Gradient:
    """The gradient of one parameter, and the hook that takes it."""

    __slots__ = ("_address", "_handle", "_name", "_parameter", "_place", "_reducer", "_view")

    def __init__(self, reducer: _Reducer, name: str, parameter: Parameter, flat: Tensor) -> None:
        self._reducer, self._name = reducer, name
        # Python does not collect a cycle through a hook of a tensor.
        self._parameter = weakref.ref(parameter)
        # In the parameter's memory order, which optimizers read faster.
        strides = torch.empty_like(parameter, device="meta").stride()
        self._place = flat.as_strided(parameter.size(), strides)
        self._address = self._place.data_ptr()
        self._view = self._place.detach()  # for the user: model.double() gives it other memory
        self._handle = parameter.register_post_accumulate_grad_hook(self)  # type: ignore[no-untyped-call]

    def __call__(self, parameter: Tensor) -> None:
        """Take the gradient that a backward pass has accumulated."""
        grad = parameter.grad
        if grad is not None and grad is not self._view:
            self._take(grad)
        self._reducer.expect_end_of_backward()

    def collect(self) -> bool:
        """Copy the gradient to its place, or zeros if there is none; return whether there is."""
        parameter = self._parameter()
        grad = None if parameter is None else parameter.grad
        if grad is None:
            self._place.zero_()
            return False
        if grad is not self._view or grad.data_ptr() != self._address:
            self._take(grad)
        return True

    def hand_out(self) -> None:
        """Set the parameter's gradient to its place."""
        if self._view.data_ptr() != self._address:
            self._view = self._place.detach()
        parameter = self._parameter()
        if parameter is not None:
            parameter.grad = self._view

    def give_up(self) -> None:
        """Leave the parameter without a gradient."""
        parameter = self._parameter()
        if parameter is not None:
            parameter.grad = None

    def remove(self) -> None:
        """Take no more gradients."""
        self._handle.remove()

    def is_of(self, reducer: _Reducer | None) -> bool:
        """Return whether it belongs to this reducer."""
        return self._reducer is reducer

    def _take(self, grad: Tensor) -> None:
        """Copy a gradient that torch or the user made."""
        if grad.requires_grad:
            raise InvalidArgumentError(
                f"fast_ddp: expected a gradient without a graph for {self._name}, got one of "
                "backward(create_graph=True), which averaging would cut; take the inner gradient "
                "with torch.autograd.grad(..., create_graph=True) and call backward() on the loss"
            )
        if grad.layout is not torch.strided:
            raise InvalidArgumentError(
                f"fast_ddp: expected a dense gradient of {self._name}, got {grad.layout}; make the "
                "layer with sparse=False, or use DistributedDataParallel"
            )
        place = self._place
        if grad.dtype != place.dtype or grad.device != place.device or grad.shape != place.shape:
            raise InvalidArgumentError(
                f"fast_ddp: expected a gradient of {self._name} like {_kind(place)}, got "
                f"{_kind(grad)}; convert the model before fast_ddp, not after"
            )
        place.copy_(grad)
        self.hand_out()


@dataclass
class _Buffer:
    """All gradients of one element type, one after the other, then the flags."""

    gradients: list[_Gradient]
    flat: Tensor
    flags: Tensor
    exact: ExactAccumulator | None

    def average(self, group: dist.ProcessGroup, is_on: bool) -> None:
        """Average the gradients; one that no rank has stays None. Unless it is on, add them up."""
        self.flags.fill_(1)
        unused = [it for it in enumerate(self.gradients) if not it[1].collect()]
        for index, _ in unused:
            self.flags[index] = 0
        gradients = self.flat
        if self.exact is not None:
            self.exact.add([gradients])
            if not is_on:
                for gradient in self.gradients:
                    gradient.give_up()
                return
            self.exact.average([gradients])
        elif cast(TorchCollectives, backend_of(group)).communicator.compression != "none":
            gradients = gradients[: -len(self.flags)]
            dist.all_reduce(self.flags, dist.ReduceOp.MAX, group=group)
        if self.exact is None:
            dist.all_reduce(gradients, dist.ReduceOp.AVG, group=group)
        for index, gradient in unused:
            if self.flags[index] != 0:
                gradient.hand_out()


class _Reducer:
    """The gradients of one model; alive as long as its parameters or `no_sync`."""

    def __init__(
        self, parameters: Sequence[tuple[str, Parameter]], group: dist.ProcessGroup, exact: bool
    ) -> None:
        self.is_on = True
        self._exact = exact
        self._group = group
        self._backwards: set[int] = set()
        self._frozen = [pair for pair in parameters if not pair[1].requires_grad]
        trained = [pair for pair in parameters if pair[1].requires_grad]
        types = dict.fromkeys(parameter.dtype for _, parameter in trained)
        self._buffers = [
            self._make([pair for pair in trained if pair[1].dtype == dtype], dtype)
            for dtype in types
        ]

    def _make(self, parameters: Sequence[tuple[str, Parameter]], dtype: torch.dtype) -> _Buffer:
        step = _ALIGNMENT_BYTES // dtype.itemsize
        counts = [-(-parameter.numel() // step) * step for _, parameter in parameters]
        flat = _zeros(sum(counts) + len(counts), dtype)
        *parts, flags = flat.tensor_split(list(itertools.accumulate(counts)))
        pairs = zip(parameters, parts, strict=True)
        exact = ExactAccumulator(self._group) if self._exact else None
        return _Buffer([_Gradient(self, *pair, part) for pair, part in pairs], flat, flags, exact)

    def remove(self) -> None:
        """Take no more gradients."""
        for buffer in self._buffers:
            for gradient in buffer.gradients:
                gradient.remove()

    def expect_end_of_backward(self) -> None:
        """Average at the end of this thread's backward pass."""
        if self.is_on or self._exact:
            # Not a flag: a backward pass that raises never reaches its end.
            backward = _backward_of_thread()
            if backward not in self._backwards:
                self._backwards.add(backward)
                at_end = functools.partial(self._average, backward)
                Variable._execution_engine.queue_callback(at_end)

    def _average(self, backward: int) -> None:
        self._backwards.discard(backward)
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise InvalidArgumentError(
                    f"fast_ddp: expected {name} to stay frozen, got requires_grad=True; set "
                    "requires_grad of all parameters before fast_ddp"
                )
        for buffer in self._buffers:
            buffer.average(self._group, self.is_on)


class _NoSync:
    """`model.no_sync`; copies and pickles of the model have one without effect."""

    def __init__(self, reducer: _Reducer) -> None:
        self.reducer = reducer

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Add to the gradients without averaging; the next backward pass outside averages all."""
        reducer = self.reducer
        before, reducer.is_on = reducer.is_on, False
        try:
            yield
        finally:
            reducer.is_on = before

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial, (contextlib.nullcontext,)


def _zeros(count: int, dtype: torch.dtype) -> Tensor:
    try:
        flat: Tensor = empty(count, dtype)
    except MemoryError as error:
        warnings.warn(f"fast_ddp: gradients are in ordinary memory: {error}", stacklevel=4)
        flat = torch.empty(count, dtype=dtype)
    return flat.zero_()


def _group(given: object) -> dist.ProcessGroup:
    expected = "fast_ddp: process_group: expected a group of the backend hccl"
    if given is None and not dist.is_initialized():
        raise InvalidArgumentError(
            f'{expected}, got none; call torch.distributed.init_process_group("hccl") first'
        )
    group: object = dist.group.WORLD if given is None else given
    if backend_of(group) is not None:
        return cast(dist.ProcessGroup, group)
    if isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgumentError(
            f"{expected}, got one that this rank is no member of; call fast_ddp on members only"
        )
    got = f"one of {group.name()}" if isinstance(group, dist.ProcessGroup) else shown(group)
    raise InvalidArgumentError(
        f'{expected}, got {got}; make one with torch.distributed.new_group(backend="hccl"), or '
        "use DistributedDataParallel"
    )


def _check(model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"fast_ddp: model: expected a torch.nn.Module, got {type(model).__name__}"
        )
    kind = type(model).__name__
    if hasattr(type(model), "no_sync"):
        raise InvalidArgumentError(
            f"fast_ddp: model: expected one without a no_sync method, got {kind}, which averages "
            "gradients itself; of DistributedDataParallel pass model.module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidArgumentError(
            f"fast_ddp: model: expected parameters to train, got {kind} without any; "
            "leave fast_ddp out"
        )
    no_sync = model.__dict__.get("no_sync")
    mine = no_sync.reducer if isinstance(no_sync, _NoSync) else None
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        _check_tensor(name, tensor, mine)


def _check_tensor(name: str, tensor: Tensor, mine: _Reducer | None) -> None:
    problem = None
    if torch.nn.parameter.is_lazy(tensor):
        problem = "one without a shape yet; run a batch through the model first"
    elif not tensor.is_cpu:
        advice = (
            "move the model with .cpu(), or use DistributedDataParallel, which stages gradients"
        )
        problem = f"one on {tensor.device}; {advice}"
    elif tensor.requires_grad and type(tensor) not in PLAIN_TYPES:
        problem = f"{type(tensor).__name__}; fast_ddp takes no sharded models"
    elif any(isinstance(it, _Gradient) and not it.is_of(mine) for it in _hooks_of(tensor)):
        problem = "one that fast_ddp has in another model; call it once, on the whole model"
    if problem:
        raise InvalidArgumentError(f"fast_ddp: {name}: expected a dense CPU tensor, got {problem}")


def _hooks_of(tensor: Tensor) -> Sequence[object]:
    hooks: Any = tensor._post_accumulate_grad_hooks
    return () if hooks is None else tuple(hooks.values())


def _described(
    parameters: Sequence[tuple[str, Tensor]], buffers: Sequence[tuple[str, Tensor]]
) -> list[str]:
    """Return a line for each tensor that must be alike on all ranks."""
    frozen = {True: "", False: ", frozen"}
    return [
        *(f"{name} ({_kind(one)}{frozen[one.requires_grad]})" for name, one in parameters),
        *(f"buffer {name} ({_kind(one)})" for name, one in buffers),
    ]


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}"


def _check_alike(mine: list[str], group: dist.ProcessGroup) -> None:
    every: list[Any] = [None] * group.size()
    dist.all_gather_object(every, mine, group=group)
    for rank, lines in enumerate(every):
        if lines != every[0]:
            pairs = zip([*every[0], "no more"], [*lines, "no more"], strict=False)
            first, other = next(pair for pair in pairs if pair[0] != pair[1])
            raise InvalidArgumentError(
                f"fast_ddp: expected the same model on all ranks, got {first} on rank 0 and "
                f"{other} on rank {rank}; build it alike on every rank"
            )
