"""Torch's option objects, reduce operations and types of arguments, and hccl-py's for them.

`arguments.py` checks the tensors of a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.types import ReduceOp

Tensors = Tensor | Sequence[Tensor]
TensorLists = Sequence[Tensor] | Sequence[Sequence[Tensor]]

PLAIN_TYPES = (Tensor, torch.nn.Parameter)
"""Every other type of tensor is a subclass, which `arguments.py` unwraps."""

OPS_BY_NAME = {op.name: op for op in ReduceOp}
_RED_OPS: dict[str, Any] = dist.ReduceOp.RedOpType.__members__  # type: ignore[assignment]


def _ops_by_hash() -> dict[int, ReduceOp]:
    """Return hccl-py's ReduceOps by the hash of torch's; none if two of torch's share a hash."""
    names = {
        hash(dist.ReduceOp(value)): name for name, value in _RED_OPS.items() if name != "PREMUL_SUM"
    }
    scaled = hash(dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
    if len(names) < len(_RED_OPS) - 1 or scaled in names:
        return {}
    return {number: OPS_BY_NAME[name] for number, name in names.items() if name in OPS_BY_NAME}


OPS_BY_HASH = _ops_by_hash()
"""For the fast path: a hash takes half the time of `int(options.reduceOp.op)`."""

UNSET_TIMEOUT = timedelta(milliseconds=-1)
Options = TypeVar("Options")
_FIELDS = {"root": "rootRank", "op": "reduceOp", "timeout": "timeout"}


def read_options(kind: type[Options], given: object, *older: object, **named: Any) -> Options:
    """Return `given` if it is an options object, else build one.

    Older overloads of torch's methods pass a root, an operation or a timeout instead, by position
    in an order that differs between methods, or by name.
    """
    if isinstance(given, kind):
        return given
    options: Any = kind()
    values: dict[str, Any] = {
        _field_of(value): value for value in (given, *older) if value is not None
    }
    values |= {_FIELDS[name]: value for name, value in named.items() if value is not None}
    for field, value in values.items():
        setattr(
            options, field, timedelta(seconds=seconds_of(value)) if field == "timeout" else value
        )
    result: Options = options
    return result


def _field_of(value: object) -> str:
    if isinstance(value, (timedelta, float)):
        return "timeout"
    return "rootRank" if isinstance(value, int) else "reduceOp"


def seconds_of(timeout: timedelta | float) -> float:
    """Return a timeout in seconds; torch takes a number of them wherever it takes a timedelta."""
    if isinstance(timeout, timedelta):
        return timeout.total_seconds()
    if isinstance(timeout, (int, float)):
        return float(timeout)
    raise InvalidArgumentError(
        f"timeout: expected a datetime.timedelta or a number of seconds, got {timeout!r}"
    )


def timeout_s(options: Any) -> float | None:
    """Return the options' timeout in seconds, None where it is unset and the group's counts."""
    timeout: timedelta = options.timeout
    return None if timeout < timedelta(0) else timeout.total_seconds()
