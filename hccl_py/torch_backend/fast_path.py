"""The fast path of collectives: plain tensors go to the communicator at once.

A Python frame costs as much as a small call in the engine, so each method of the group is one
closure that checks and calls without another frame. The communicator rejects what is no plain
memory, mixed element types, wrong sizes and wrong ranks before it sends anything. Then, and for
tensor subclasses, timeouts of a call, the profiler and older overloads, `checked.py` takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.torch_backend.types import OPS_BY_HASH, PLAIN_TYPES, UNSET_TIMEOUT
from hccl_py.torch_backend.work import FINISHED, as_torch_error
from hccl_py.transport.errors import HcclError, InvalidArgumentError

Method = Callable[..., Any]
_SEQUENCES = (list, tuple)


def collective(
    name: str,
    method: str,
    kind: Any,
    num_tensors: int = 2,
    *,
    num_splits: int = 0,
    rooted: bool = False,
    reduces: bool = False,
) -> Method:
    """Make a method of the process group.

    Args:
        name: of the method in torch; `CheckedCalls` has one of this name.
        method: of the communicator.
        kind: torch's type of options, the method's last argument.
        num_tensors: 2: an output and an input; 1: a list of one tensor; 0: none.
        num_splits: number of lists of split sizes after the tensors; with equal parts of rows, they
            are empty.
        rooted: the communicator's method takes a root.
        reduces: the communicator's method takes a ReduceOp.
    """
    num_given = 3 + num_splits if num_tensors == 2 else 1 + num_tensors

    def call(self: Any, *given: Any, **named: Any) -> Any:
        state = self._state
        opts: Any = given[-1] if given else named.get("opts")
        if (
            type(opts) is kind
            and state.fast
            and (len(given) == num_given or not num_tensors)
            and opts.timeout == UNSET_TIMEOUT
            and not _profiler_enabled()
        ):
            tensors = given[:2] if num_tensors == 2 else given[0] if num_tensors else ()
            if (
                type(tensors) in _SEQUENCES
                and len(tensors) == num_tensors
                and (not num_tensors or type(tensors[0]) in PLAIN_TYPES)
                and (num_tensors < 2 or type(tensors[1]) in PLAIN_TYPES)
                and (not num_splits or not (len(given[2]) or len(given[3])))
                # Equal parts are equal numbers of rows, not of elements.
                and (not num_splits or (tensors[0].dim() and tensors[1].dim()))
                and (not num_splits or not tensors[0].size(0) % state.world_size)
                and (not num_splits or not tensors[1].size(0) % state.world_size)
            ):
                arguments = [*tensors]
                if rooted:
                    arguments.append(opts.rootRank)
                if reduces:
                    arguments.append(OPS_BY_HASH.get(hash(opts.reduceOp)))
                try:
                    if opts.asyncOp:
                        native = getattr(state.communicator.nonblocking, method)(*arguments)
                        state.sequence_number += 1
                        return self._submitter.started(native, arguments[:1], state.lane)
                    getattr(state.communicator, method)(*arguments)
                    state.sequence_number += 1
                    return FINISHED
                except InvalidArgumentError:
                    pass
                except HcclError as error:
                    raise as_torch_error(error)  # noqa: B904  # it names its cause
        return getattr(self._checked, name)(*given, **named)

    call.__name__ = call.__qualname__ = name
    return call


def transfer(name: str) -> Method:
    """Make `send` or `recv` of the process group."""

    def call(self: Any, *given: Any, **named: Any) -> Any:
        state = self._state
        tensors = given[0] if len(given) > 1 else ()
        if (
            type(tensors) is list
            and state.fast
            and len(tensors) == 1
            and type(tensors[0]) in PLAIN_TYPES
            and not named
        ):
            try:
                native = getattr(state.communicator.nonblocking, name)(tensors[0], *given[1:])
                return self._submitter.started(native, tensors, None)
            except InvalidArgumentError:
                pass
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return getattr(self._checked, name)(*given, **named)

    call.__name__ = call.__qualname__ = name
    return call


def checked(name: str) -> Any:
    """Make a method that has only the slow path; it adds no frame."""
    return property(attrgetter(f"_checked.{name}"), doc=f"See `CheckedCalls.{name}`.")
