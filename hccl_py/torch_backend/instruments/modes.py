"""Shows calls to torch's dispatch modes, such as CommDebugMode, as the operators of C++ groups.

A call of a C++ group is an operator, such as `c10d::allreduce_`, and modes see operators. The
kernels of these operators call the group's C++ backend, which a group in Python does not have. So
the operator runs for the modes only, and then the call itself. A mode below the program's keeps the
operator from its kernel.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _DisableTorchDispatch, _len_torch_dispatch_stack
from torch._C._distributed_c10d import FakeWork
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from hccl_py.torch_backend.checks.arguments import Call
from hccl_py.torch_backend.instruments.capture_guard import OnlyCollectives

OPERATORS = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "reduce": "reduce_",
    "reduce_scatter": "reduce_scatter_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "broadcast": "broadcast_",
    "allgather": "allgather_",
    "allgather_coalesced": "allgather_coalesced_",
    "all_gather_single": "_allgather_base_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "gather": "gather_",
    "gather_single": "gather_into_tensor_",
    "scatter": "scatter_",
    "alltoall": "alltoall_",
    "all_to_all_single": "alltoall_base_",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
}
"""The operator of c10d by the method of a group."""


class _Bottom(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends an operator that has reached the last mode."""

    def __init__(self, operator: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator = operator

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if function is not self._operator:
            return function(*arguments, **(options or {}))
        work = FakeWork().boxed()
        return (arguments[0], work) if len(function._schema.returns) > 1 else work


def show_to_modes(group: Any, call: Call, calls: Sequence[tuple[Any, ...]]) -> None:
    """Run the operator of a call for the modes of this thread; `calls` are the communicator's.

    A mode is off the stack while it handles an operator. So a functional collective's call is not
    shown again.
    """
    if not _len_torch_dispatch_stack():
        return
    operator = getattr(torch.ops.c10d, OPERATORS[call.name]).default
    with _DisableTorchDispatch():
        known = _known(group, call, calls)
        values = [
            known[argument.name] if argument.name in known else _tensors(call, argument)
            for argument in operator._schema.arguments
        ]
    stack: Any = _get_current_dispatch_mode_stack()
    modes = [mode for mode in stack if not mode.is_infra_mode()]
    shown = [_Bottom(operator), *(mode for mode in modes if type(mode) is not OnlyCollectives)]
    _replace(modes, shown)
    try:
        operator(*values)
    finally:
        _replace(shown, modes)


def _replace(old: Sequence[Any], new: Sequence[Any]) -> None:
    for _ in old:
        _pop_mode()
    for mode in new:
        _push_mode(mode)


def _known(group: Any, call: Call, calls: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return the values of all non-tensor arguments, by their names in the schemas."""
    opts = call.opts
    peer, tag = calls[0][1:] if opts is None else (None, None)
    return {
        "process_group": group.boxed(),
        "reduce_op": torch.classes.c10d.ReduceOp(),  # has no other constructor
        "sparse_indices": None,
        "root_rank": getattr(opts, "rootRank", None),
        "root_tensor": 0,
        "async_op": getattr(opts, "asyncOp", None),
        "timeout": -1,
        "device_ids": [],
        "output_split_sizes": [],
        "input_split_sizes": [],
        "src": peer,
        "dst": peer,
        "tag": tag,
        "tensor": torch.empty(1, dtype=torch.uint8),  # barrier's
    }


def _tensors(call: Call, argument: Any) -> Any:
    both = call.results or call.inputs
    kind = argument.name.partition("put")[0]
    found = {"in": call.inputs, "out": call.results}.get(kind, both)
    depth = str(argument.type).count("List")
    return found[0] if depth == 0 else found if depth == 1 else [found]
