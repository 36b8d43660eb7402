"""Torch's option objects, reduce operations and types of arguments, and ours for them.

The tensors of a call are checked in `torch_call.py`.
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
"""Tensors that are what they seem; every other type is a subclass to look into."""

OPS_BY_NAME = {op.name: op for op in ReduceOp}
_RED_OPS: dict[str, Any] = dist.ReduceOp.RedOpType.__members__  # type: ignore[assignment]
REDUCE_OPS: list[ReduceOp | None] = [None] * (1 + max(int(value) for value in _RED_OPS.values()))
"""Ours by torch's number. A list: hashing torch's enum costs as much as the rest of the lookup."""
for _name, _value in _RED_OPS.items():
    REDUCE_OPS[int(_value)] = OPS_BY_NAME.get(_name)
PREMUL_SUM = int(_RED_OPS["PREMUL_SUM"])


def _ops_by_hash() -> dict[int, ReduceOp]:
    """Return ours by the hash of torch's ReduceOp; none if that does not tell them apart."""
    names = {
        hash(dist.ReduceOp(value)): name for name, value in _RED_OPS.items() if name != "PREMUL_SUM"
    }
    scaled = hash(dist._make_nccl_premul_sum(2.0))  # type: ignore[attr-defined]
    if len(names) < len(_RED_OPS) - 1 or scaled in names:
        return {}
    return {number: OPS_BY_NAME[name] for number, name in names.items() if name in OPS_BY_NAME}


OPS_BY_HASH = _ops_by_hash()
"""For the short way: a hash takes half the time of `int(options.reduceOp.op)`."""

UNSET_TIMEOUT = timedelta(milliseconds=-1)
Options = TypeVar("Options")


def read_options(
    kind: type[Options],
    given: object,
    *,
    root: int | None = None,
    op: object = None,
    timeout: timedelta | None = None,
) -> Options:
    """Return `given` if it is an options object, else build one.

    The older overloads of torch's methods pass a root, an operation or a timeout in its place.
    """
    if isinstance(given, kind):
        return given
    options: Any = kind()
    if isinstance(op, (timedelta, float)):
        # (tensor, operation, timeout), where the operation came as `given`.
        timeout = timedelta(seconds=seconds_of(op))
        op = None
    if isinstance(given, (timedelta, float)):
        timeout = timedelta(seconds=seconds_of(given))
    elif isinstance(given, int):
        root = given
    elif given is not None:
        op = given
    if root is not None:
        options.rootRank = root
    if op is not None:
        options.reduceOp = op
    if timeout is not None:
        options.timeout = timeout
    result: Options = options
    return result


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
