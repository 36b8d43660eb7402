"""The fast path of collectives: plain tensors go to the communicator at once.

A Python frame costs as much as a small call in the engine, so each method of the group is one
closure that checks and calls without another frame. The communicator rejects what is no plain
memory, mixed element types, wrong sizes and wrong ranks before it sends anything. Then, and for
tensor subclasses, timeouts of a call, the profiler and older overloads, `checked.py` takes over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Any

from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]

from hccl_py.torch_backend.types import OPS_BY_HASH, PLAIN_TYPES, UNSET_TIMEOUT
from hccl_py.torch_backend.work import FINISHED, as_torch_error
from hccl_py.transport.errors import HcclError, InvalidArgumentError

Method = Callable[..., Any]
_op = OPS_BY_HASH.get


class Shape(Enum):
    """The arguments of a method of torch's process group."""

    IN_PLACE = "a list of one tensor, options"
    PAIR = "output, input, options"
    SPLIT = "output, input, two lists of split sizes, options"
    EMPTY = "options"


def collective(
    method: str, kind: Any, shape: Shape, *, rooted: bool = False, reduces: bool = False
) -> Callable[[Method], Method]:
    """Give a method of the process group a fast path; its body is the slow one.

    Args:
        method: of the communicator.
        kind: torch's type of options.
        shape: of the arguments. With SPLIT only equal numbers of rows take the fast path.
        rooted: the communicator's method takes a root.
        reduces: the communicator's method takes a ReduceOp.
    """
    in_place, pair = shape is Shape.IN_PLACE, shape is Shape.PAIR
    split, empty = shape is Shape.SPLIT, shape is Shape.EMPTY

    def decorate(slow: Method) -> Method:
        @functools.wraps(slow)
        def call(
            self: Any, one: Any = None, two: Any = None, three: Any = None, *more: Any, **named: Any
        ) -> Any:
            state = self._state
            opts = two if in_place else three
            if not (in_place or pair):
                opts = named.get("opts", one) if empty else more[-1] if more else None
            if (
                type(opts) is kind
                and state.fast
                and (
                    (type(one) is list and len(one) == 1 and type(one[0]) in PLAIN_TYPES)
                    if in_place
                    else empty or (type(one) in PLAIN_TYPES and type(two) in PLAIN_TYPES)
                )
                and opts.timeout == UNSET_TIMEOUT
                and not _profiler_enabled()
                and not (split and (len(three) or len(more[0]) or not one.dim() or not two.dim()))
                and not (
                    split and (one.size(0) % state.world_size or two.size(0) % state.world_size)
                )
            ):
                try:
                    run = state.methods[method][opts.asyncOp]
                    if pair or split:
                        work = run(one, two, _op(hash(opts.reduceOp))) if reduces else run(one, two)
                    elif not rooted:
                        work = run(one[0], _op(hash(opts.reduceOp))) if in_place else run()
                    elif reduces:
                        work = run(one[0], opts.rootRank, _op(hash(opts.reduceOp)))
                    else:
                        work = run(one[0], opts.rootRank)
                    state.sequence_number += 1
                    if work is None:
                        return FINISHED
                    results = one if in_place else [] if empty else [one]
                    return self._submitter.started(work, results, state.lane)
                except InvalidArgumentError:
                    pass
                except HcclError as error:
                    raise as_torch_error(error)  # noqa: B904  # it names its cause
            return slow(self, *_given(one, two, three, *more), **named)

        return call

    return decorate


def _given(*arguments: Any) -> tuple[Any, ...]:
    """Return the arguments without the defaults at the end."""
    while arguments and arguments[-1] is None:
        arguments = arguments[:-1]
    return arguments


def transfer(slow: Method) -> Method:
    """Give `send` or `recv` of the process group a fast path; its body is the slow one."""
    name = slow.__name__

    @functools.wraps(slow)
    def call(self: Any, tensors: Any = None, *more: Any, **named: Any) -> Any:
        state = self._state
        if (
            type(tensors) is list
            and len(tensors) == 1
            and type(tensors[0]) in PLAIN_TYPES
            and state.fast
            and not named
        ):
            try:
                work = state.methods[name][True](tensors[0], *more)
                return self._submitter.started(work, tensors, None)
            except InvalidArgumentError:
                pass
            except HcclError as error:
                raise as_torch_error(error)  # noqa: B904  # it names its cause
        return slow(self, *_given(tensors, *more), **named)

    return call


def checked(name: str) -> Any:
    """Make a method that has only the slow path; it adds no frame."""
    return property(attrgetter(f"_checked.{name}"), doc=f"See `CheckedCalls.{name}`.")
