"""Makes Horovod's calls from the rows of `signatures`, for the tensors of one library.

The form of a call is in its name: `grouped_` takes a list, `_async` returns a handle at once, and
a `_` at the end overwrites the given tensors.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any

from hccl_py.horovod import signatures
from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.collectives.collective import Sizes
from hccl_py.horovod.collectives.rows import AllToAll
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.signatures import COMPRESSED, NOT_USED, DescribedCall, Row
from hccl_py.memory.buffers import require_elements

Outcome = tuple[list[Any], Sizes]
"""The results of a call, one for each tensor, and the sizes of its collective."""


@dataclass(frozen=True)
class Calls:
    """The calls on the tensors of one library.

    Attributes:
        module: where the calls are public.
        given: the type of the tensors that they take, for `inspect.signature`.
        made: the type of their results.
        arrays: the library's operations; in-place ones overwrite the given tensors.
        run: runs a call to its end, with gradients and compression; None: there are none.
        received: converts the sizes that alltoall received to the type of the given splits.
        orders: by call, its arguments after the tensors; None: in the order of the rows.
    """

    module: str
    given: Any
    made: Any
    arrays: Arrays
    run: Callable[[DescribedCall, Sequence[Any]], Outcome] | None = None
    received: Callable[[Any, Sizes], Any] = lambda splits, sizes: sizes
    orders: Mapping[str, str] | None = None

    def __call__(self, name: str) -> Callable[..., Any]:
        """Return the public function of this name; the row of the call reads its arguments."""
        is_async, is_grouped = "_async" in name, name.startswith("grouped_")
        run = None if is_async else self.run
        alone = name.replace("_async", "").removeprefix("grouped_").removesuffix("_")
        row: Row = getattr(signatures, alone)
        if run is not None and alone in COMPRESSED:
            row = COMPRESSED[alone]
        if self.orders is not None:
            row = _reordered(self.orders[name], row)
        signature = self._signature(row, is_async, is_grouped)

        def result(described: DescribedCall, outcome: Outcome) -> Any:
            made, sizes = outcome
            splits = described.splits
            if isinstance(described.collective, AllToAll) and (is_async or splits is not None):
                return made[0], self.received(splits, sizes)
            return made if is_grouped else made[0]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not args:  # the tensor has a keyword, or is missing
                bound = signature.bind(**kwargs)
                args, kwargs = bound.args, bound.kwargs
            described, tensors = row(*args[1:], **kwargs), args[0] if is_grouped else [args[0]]
            for each in tensors:
                require_elements(each, "tensor")
            if run is not None:
                return result(described, run(described, tensors))
            started = described.collective.start(self.arrays, tensors, described.splits)
            handle = started.then(lambda outcome: result(described, outcome))
            return handle if is_async else handle.wait()

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__name__ = call.__qualname__ = name
        call.__module__, call.__doc__ = self.module, _effect(name, alone, row)
        if run is not None:
            call.__doc__ = f"{call.__doc__}\n\nThe result is differentiable."
        return call

    def _signature(self, row: Row, is_async: bool, is_grouped: bool) -> Signature:
        name, given, made = "tensor", self.given, self.made
        if is_grouped:
            name, given, made = "tensors", GenericAlias(Sequence, given), GenericAlias(list, made)
        first = Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=given)
        others = inspect.signature(row).parameters.values()
        result = GenericAlias(Handle, made) if is_async else made
        return Signature([first, *others], return_annotation=result)


def _effect(name: str, alone: str, row: Row) -> str | None:
    """Return the docstring of a call."""
    if "_async" in name:
        waits = name.replace("_async", "")
        return f"Start `{waits}`, without a gradient; `synchronize` returns its result."
    if name.startswith("grouped_"):
        return f"Call `{alone}` for each tensor of a list; small ones are sent together."
    if name.endswith("_"):
        return f"Overwrite the tensor with the result of `{alone}`, and return it."
    return row.__doc__


def _reordered(order: str, row: Row) -> Row:
    """Return a row that takes its arguments, and ignored ones, in another order."""
    known = inspect.signature(row).parameters
    unused = {
        each: Parameter(each, Parameter.POSITIONAL_OR_KEYWORD, default=value)
        for each, value in NOT_USED.items()
    }
    signature = Signature([{**unused, **known}[each] for each in order.split()])

    def reordered(*args: Any, **kwargs: Any) -> DescribedCall:
        bound = signature.bind(*args, **kwargs).arguments
        return row(**{each: value for each, value in bound.items() if each in known})

    reordered.__signature__ = signature  # type: ignore[attr-defined]
    reordered.__doc__ = row.__doc__
    return reordered
