"""What libhccl calls of Python. Each function returns an `hcclResult_t`, and a result or text.

csrc/python.h calls them; the data of calls never comes here.
"""

import ctypes
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from hccl_py.communicator import Communicator
from hccl_py.fingerprint import Call, Transfer
from hccl_py.membership.unique_id import get_unique_id
from hccl_py.memory.element_types import ELEMENT_TYPES
from hccl_py.memory.registered import allocate as allocate_registered
from hccl_py.observe.dump_signal import BELL
from hccl_py.transport import _core
from hccl_py.transport.errors import (
    AbortedError,
    BootstrapError,
    CollectiveTimeoutError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
)
from hccl_py.transport.process_lifecycle import run_exit_steps
from hccl_py.transport.types import ReduceOp

_OUT_OF_MEMORY, _SYSTEM_ERROR, _INTERNAL_ERROR, _INVALID_ARGUMENT, _INVALID_USAGE = 3, 5, 6, 7, 8
_SOCKET_ERROR, _STREAM_ERROR = 9, 14
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (InvalidArgumentError, _INVALID_ARGUMENT),
    (MismatchError, _INVALID_USAGE),
    (PeerLostError, _SOCKET_ERROR),
    (AbortedError, _STREAM_ERROR),
    (CollectiveTimeoutError, _SYSTEM_ERROR),
    (BootstrapError, _SYSTEM_ERROR),
    (MemoryError, _OUT_OF_MEMORY),
)
"""Values of hcclResult_t, by the error of Python."""

_TYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bfloat16"),
)
_BY_NAME = {one.name: one for one in ELEMENT_TYPES}
_KINDS = tuple(_BY_NAME[name] for name in _TYPES)
"""By the values of hcclDataType_t."""

_OPS = ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AVG
"""By the values of hcclRedOp_t."""

Arguments = ParamSpec("Arguments")


def answering(function: Callable[Arguments, Any]) -> Callable[Arguments, tuple[int, Any]]:
    """Have a function return its errors."""

    @wraps(function)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[int, Any]:
        try:
            return 0, function(*args, **kwargs)
        except BaseException as error:
            return code_of(error), text_of(error)

    return answer


def code_of(error: BaseException) -> int:
    """Return the hcclResult_t of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), _INTERNAL_ERROR)


def text_of(error: BaseException) -> str:
    """Return the text of an error, with its type if it is no error of this library's."""
    is_known = code_of(error) != _INTERNAL_ERROR
    return str(error) if is_known and str(error) else f"{type(error).__name__}: {error}"


@answering
def begin(is_embedded: int, version: int) -> object:
    """Return the engine's functions for C; `is_embedded`: this Python was started for libhccl."""
    if is_embedded:
        BELL.leaves_signals_alone = True
    if version != _core.c_entry_version:
        raise InvalidArgumentError(
            f"libhccl: expected the library of this hccl_py (version {_core.c_entry_version} of "
            f"its entry), got one of version {version}; link the library of `hccl-config --libs`"
        )
    return _core.c_entry()


@answering
def leave() -> None:
    """Close everything: the program ends, and Python's own exit never comes."""
    run_exit_steps()


@answering
def unique_id(address: int) -> int:
    """Write a new unique id to an address; return its length."""
    uid = bytes(get_unique_id())
    ctypes.memmove(address, uid, len(uid))
    return len(uid)


@answering
def connect(
    address: int, length: int, rank: int, world_size: int, timeout_s: float, name: str
) -> "_Opened":
    """Make a communicator by the id at an address; without one, by HCCL_COMM_ID."""
    if length:
        uid = ctypes.string_at(address, length)
    elif os.environ.get("HCCL_COMM_ID"):
        uid = bytes(get_unique_id())
    else:
        raise InvalidArgumentError(
            "commId: expected an id of hcclGetUniqueId, or HCCL_COMM_ID=address:port in the "
            "environment of all ranks, got neither"
        )
    return _opened(Communicator(uid, rank, world_size, timeout_s=timeout_s, name=name))


_Opened = tuple[Communicator, _core.Communicator, int, int]
"""A communicator, its engine, this rank and the number of ranks."""


def _opened(communicator: Communicator) -> _Opened:
    engine = communicator._state.require_engine()
    return communicator, engine, communicator.rank, communicator.world_size


@answering
def plan(
    communicator: Communicator, collective: str, dtype: int, op: int, count: int, root: int
) -> _core.Prepared:
    """Make the plan of a collective; `count` is the total of the elements, `root` -1: none."""
    state, kind = communicator._state, _KINDS[dtype]
    return state.plans.find(
        collective, kind, _OPS[op], count, None if root < 0 else root, True, state.compression
    )


@answering
def explain(
    communicator: Communicator, failed: _core.CommunicatorFailed, prepared: _core.Prepared
) -> "_Explained":
    """Explain why a collective failed."""
    return _explained(communicator, failed, prepared.fingerprint)


@answering
def explain_transfer(
    communicator: Communicator,
    failed: _core.CommunicatorFailed,
    sends: int,
    peer: int,
    num_bytes: int,
) -> "_Explained":
    """Explain why a send or recv failed."""
    return _explained(communicator, failed, Transfer(bool(sends), peer, 0, num_bytes))


_Explained = tuple[int, str, bool]
"""Code and text of an error, and whether the communicator has failed."""


def _explained(
    communicator: Communicator, failed: _core.CommunicatorFailed, call: Call
) -> _Explained:
    state = communicator._state
    error = state.errors.of_call(failed, state.timeout_s, call)
    return code_of(error), text_of(error), state.core is None or state.core.failed()


@answering
def close(communicator: Communicator) -> None:
    """Close a communicator; its calls have ended."""
    communicator.close()


@answering
def abort(communicator: Communicator) -> None:
    """End the running calls of a communicator on all ranks."""
    communicator.abort("hcclCommAbort() was called")


@answering
def split(communicator: Communicator, color: int, key: int, timeout_s: float) -> Any:
    """Make the communicator of a colour; None for a negative colour."""
    made = communicator.split(None if color < 0 else color, key, timeout_s=timeout_s)
    return None if made is None else _opened(made)


@answering
def shrink(communicator: Communicator, exclude: str, timeout_s: float) -> Any:
    """Make a communicator without the ranks in `exclude`, separated by spaces."""
    made = communicator.shrink([int(rank) for rank in exclude.split()], timeout_s=timeout_s)
    return _opened(made)


@answering
def allocate(num_bytes: int) -> tuple[int, np.ndarray[Any, Any]]:
    """Return the address of new registered memory, and the object that keeps it."""
    memory = allocate_registered(num_bytes).array()
    return memory.ctypes.data, memory
