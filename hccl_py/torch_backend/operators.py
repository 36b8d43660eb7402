"""torch.ops.hccl: blocking collectives that torch.compile keeps in one graph.

They have the names and arguments of `torch.ops._c10d_functional`, without `wait_tensor`. A name
that ends in `_` writes its first argument. The others return new tensors and have gradients. A
compiled graph has only operators that write: the others are made of them, so Inductor chooses the
buffers. Each takes a group of any backend by its name.

Torch's own operators start a call, which a thread of the engine ends, and wait for it. For a small
call that takes several times as long. `compat/` has Dynamo trace the operators here for
`dist.all_reduce` and others on a group of hccl.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.fx.node import has_side_effect

from hccl_py.torch_backend import AFTER_IMPORT
from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.torch_backend.work import FINISHED
from hccl_py.transport.errors import InvalidArgumentError

_LIBRARY: Any = torch.library.Library("hccl", "DEF")  # type: ignore[no-untyped-call]
_OPS: Any = torch.ops.hccl
_group: Any = c10d._resolve_process_group
_REDUCE_OPS = {name: op for op, name in functional.REDUCE_OP_TO_STR.items()}
Kernel = TypeVar("Kernel", bound=Callable[..., Any])
WRITING: dict[Any, str] = {}
"""The operators that write an argument, and the names of their functions in this module."""


@functools.cache
def _blocking(kind: Any, **fields: Any) -> Any:
    options = kind()
    options.asyncOp = False
    for name, value in fields.items():
        setattr(options, name, value)
    return options


@functools.cache
def _reducing(kind: Any, name: str) -> Any:
    if name.lower() not in _REDUCE_OPS:
        raise InvalidArgumentError(
            f"torch.ops.hccl: expected `reduce_op` to be one of {', '.join(_REDUCE_OPS)}; "
            f"got {name!r}"
        )
    return _blocking(kind, reduceOp=_REDUCE_OPS[name.lower()])


def _end(work: Any) -> None:
    if work is not FINISHED:
        work.wait()


def _require_no_gradient(written: Any, name: str) -> None:
    tensors = written if isinstance(written, list) else (written,)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise InvalidArgumentError(
            f"torch.ops.hccl.{name} has no gradient, but its tensor requires one; use "
            f"torch.ops.hccl.{name[:-1]}, or torch.no_grad()"
        )


def _writes(schema: str) -> Callable[[Kernel], Kernel]:
    """Define an operator that writes its first argument, and returns nothing."""

    def define(kernel: Kernel) -> Kernel:
        name = kernel.__name__
        # The caller's strides: ranks that compiled other code send elements in the same order.
        _LIBRARY.define(f"{name}{schema} -> ()", tags=(torch.Tag.needs_exact_strides,))

        def run(written: Any, *arguments: Any) -> None:
            _require_no_gradient(written, name)
            kernel(written, *arguments)

        _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        _LIBRARY.impl(name, lambda written, *_: _require_no_gradient(written, name), "Meta")
        _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
        WRITING[getattr(_OPS, name).default] = name
        return kernel

    return define


@_writes("(Tensor(a!) tensor, str reduce_op, str group_name)")
def all_reduce_(tensor: Tensor, op: str, group: str) -> None:
    """Reduce `tensor` over all ranks."""
    _end(_group(group).allreduce([tensor], _reducing(c10d.AllreduceOptions, op)))


@_writes("(Tensor(a!)[] tensors, str reduce_op, str group_name)")
def all_reduce_coalesced_(tensors: list[Tensor], op: str, group: str) -> None:
    """Reduce each of `tensors` over all ranks."""
    options = _reducing(c10d.AllreduceCoalescedOptions, op)
    _end(_group(group).allreduce_coalesced(tensors, options))


@_writes("(Tensor(a!) tensor, int src, str group_name)")
def broadcast_(tensor: Tensor, src: int, group: str) -> None:
    """Copy the tensor of the group's rank `src` to all ranks."""
    options = _blocking(c10d.BroadcastOptions, rootRank=src)
    _end(_group(group).broadcast([tensor], options))


@_writes("(Tensor(a!) output, Tensor input, str group_name)")
def all_gather_into_tensor_(output: Tensor, input: Tensor, group: str) -> None:
    """Collect every rank's `input` in `output`."""
    options = _blocking(c10d.AllgatherOptions)
    _end(_group(group).all_gather_single(output, input, options))


@_writes("(Tensor(a!) output, Tensor input, str reduce_op, str group_name)")
def reduce_scatter_tensor_(output: Tensor, input: Tensor, op: str, group: str) -> None:
    """Reduce `input`, equal blocks for each rank, and keep this rank's."""
    options = _reducing(c10d.ReduceScatterOptions, op)
    _end(_group(group).reduce_scatter_single(output, input, options))


@_writes(
    "(Tensor(a!) output, Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, "
    "str group_name)"
)
def all_to_all_single_(
    output: Tensor, input: Tensor, received: list[int], sent: list[int], group: str
) -> None:
    """Send rows of `input` to each rank in turn; empty sizes mean equal parts."""
    options = _blocking(c10d.AllToAllOptions)
    _end(_group(group).all_to_all_single(output, input, received, sent, options))


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, kernel: Any, adjoint: Any, arguments: Any, tensor: Tensor
    ) -> Any:
        ctx.adjoint, ctx.arguments = adjoint, arguments
        return kernel(tensor, *arguments)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # noqa: D102
        return None, None, None, ctx.adjoint(gradient.contiguous(), *ctx.arguments)


def _returns(
    schema: str, adjoint: Callable[..., Tensor] | None = None
) -> Callable[[Kernel], Kernel]:
    """Define an operator by others: what it returns, and what its `adjoint` makes of a gradient."""

    def define(kernel: Kernel) -> Kernel:
        def run(tensor: Tensor, *arguments: Any) -> Any:
            if adjoint is not None and tensor.requires_grad and torch.is_grad_enabled():
                return _Differentiable.apply(kernel, adjoint, arguments, tensor)  # type: ignore[no-untyped-call]
            return kernel(tensor, *arguments)

        _LIBRARY.define(f"{kernel.__name__}{schema}")
        _LIBRARY.impl(kernel.__name__, run, "CompositeImplicitAutograd")
        return kernel

    return define


def _require_sum(op: str) -> None:
    if op.lower() != "sum":
        raise RuntimeError(f"torch.ops.hccl: only the reduce_op 'sum' has a gradient, not {op!r}")


def _sum_of_gradients(gradient: Tensor, op: str, group: str) -> Any:
    _require_sum(op)
    return _OPS.all_reduce(gradient, op, group)


@_returns("(Tensor input, str reduce_op, str group_name) -> Tensor", _sum_of_gradients)
def all_reduce(tensor: Tensor, op: str, group: str) -> Tensor:
    """Return the reduced tensor."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    _OPS.all_reduce_(result, op, group)
    return result


@_returns("(Tensor[] inputs, str reduce_op, str group_name) -> Tensor[]")
def all_reduce_coalesced(tensors: list[Tensor], op: str, group: str) -> list[Tensor]:
    """Return each of `tensors` reduced."""
    return [_OPS.all_reduce(tensor, op, group) for tensor in tensors]


@_returns("(Tensor input, int src, str group_name) -> Tensor")
def broadcast(tensor: Tensor, src: int, group: str) -> Tensor:
    """Return the tensor of the group's rank `src`."""
    result = tensor.clone(memory_format=torch.contiguous_format)
    _OPS.broadcast_(result, src, group)
    return result


def _scattered(gradient: Tensor, size: int, group: str) -> Any:
    return _OPS.reduce_scatter_tensor(gradient, "sum", size, group)


@_returns("(Tensor input, int group_size, str group_name) -> Tensor", _scattered)
def all_gather_into_tensor(tensor: Tensor, size: int, group: str) -> Tensor:
    """Return every rank's tensor, one behind the other."""
    result = tensor.new_empty((size * tensor.size(0), *tensor.shape[1:]))
    _OPS.all_gather_into_tensor_(result, tensor, group)
    return result


def _gathered(gradient: Tensor, op: str, size: int, group: str) -> Any:
    _require_sum(op)
    return _OPS.all_gather_into_tensor(gradient, size, group)


@_returns("(Tensor input, str reduce_op, int group_size, str group_name) -> Tensor", _gathered)
def reduce_scatter_tensor(tensor: Tensor, op: str, size: int, group: str) -> Tensor:
    """Return this rank's block of the reduced tensor."""
    result = tensor.new_empty((tensor.size(0) // size, *tensor.shape[1:]))
    _OPS.reduce_scatter_tensor_(result, tensor, op, group)
    return result


def _sent_back(gradient: Tensor, received: list[int], sent: list[int], group: str) -> Any:
    return _OPS.all_to_all_single(gradient, sent, received, group)


@_returns(
    "(Tensor input, SymInt[] output_split_sizes, SymInt[] input_split_sizes, str group_name) "
    "-> Tensor",
    _sent_back,
)
def all_to_all_single(tensor: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:
    """Return the rows that the ranks have sent to this one; empty sizes mean equal parts."""
    rows = sum(received) if received else tensor.size(0)
    result = tensor.new_empty((rows, *tensor.shape[1:]))
    _OPS.all_to_all_single_(result, tensor, received, sent, group)
    return result


def group_name(output: Tensor, input: Tensor, group: Any) -> str | None:
    """Return the name of a group of hccl, if an operator that writes takes these tensors.

    Dynamo traces this function; each global name in it costs time in every compiled call. Torch's
    own operators have gradients, and take tensors of other devices.
    """
    world: Any = group or dist.group.WORLD
    name: str = world.group_name
    if output.requires_grad or input.requires_grad or not (output.is_cpu and input.is_cpu):
        return None
    return name if _is_of_hccl(name) else None


def _is_of_hccl(group: str) -> bool:
    return backend_of(_group(group)) is not None


_is_of_hccl._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _lower() -> None:
    """Have Inductor call the functions without a dispatcher, in the order of the graph.

    It keeps the order of what it takes for a collective of torch's, and of nothing else.
    """
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    class Collective(ir._CollectiveKernel):
        def codegen(self, wrapper: Any) -> None:
            if not V.graph.cpp_wrapper:
                wrapper.add_import_once(f"import {__name__} as hccl_operators")
                self.python_kernel_name = f"hccl_operators.{WRITING[self.op_overload]}"
            super().codegen(wrapper)

    for operator in WRITING:
        has_side_effect(operator)  # even if this rank does not use the result
        lowering.lowerings[operator] = functools.partial(Collective.create, operator)


_LOWERINGS = "torch._inductor.lowering"
if _LOWERINGS in sys.modules:
    _lower()
else:
    AFTER_IMPORT[_LOWERINGS] = _lower
