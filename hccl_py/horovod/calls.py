"""Makes Horovod's calls from the rows of `signatures`, for the tensors of one library.

The form of a call is in its name: `grouped_` takes a list, `_async` returns a handle at once, and
a `_` at the end changes the tensors that it is given.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from hccl_py.horovod.collectives.arrays import Arrays
from hccl_py.horovod.collectives.collective import Sizes
from hccl_py.horovod.collectives.move import Exchange
from hccl_py.horovod.handle import Handle
from hccl_py.horovod.signatures import NOT_USED, Request
from hccl_py.memory.buffers import require_elements

Given = TypeVar("Given")
Made = TypeVar("Made")
Arguments = ParamSpec("Arguments")
Outcome = tuple[list[Any], Sizes]
"""The results of a call, one for each tensor, and the sizes of its collective."""


@dataclass(frozen=True)
class Calls(Generic[Given, Made]):
    """The calls on the tensors of one library.

    Attributes:
        module: where the calls are public.
        given: the type of the tensors that they take, for `inspect.signature`.
        made: the type of their results.
        arrays: the library, of which an in-place one overwrites the tensors that it is given.
        run: runs a request to its end, with gradients; None: there are none.
        received: makes the sizes that alltoall received like the splits that it was given.
        orders: by call, its arguments after the tensors, where their order is not that of the rows.
    """

    module: str
    given: Any
    made: Any
    arrays: Arrays[Any]
    run: Callable[[Request, Sequence[Any]], Outcome] | None = None
    received: Callable[[Any, Sizes], Any] = lambda splits, sizes: sizes
    orders: Mapping[str, str] | None = None

    def one(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Given, Arguments], Made]:
        """Make a call on one tensor, which waits."""
        return self._call(name, row)

    def many(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Sequence[Given], Arguments], list[Made]]:
        """Make a call on a list of tensors, which waits."""
        return self._call(name, row)

    def one_async(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Given, Arguments], Handle[Made]]:
        """Make a call on one tensor that runs in the background."""
        return self._call(name, row)

    def many_async(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Sequence[Given], Arguments], Handle[list[Made]]]:
        """Make a call on a list of tensors that runs in the background."""
        return self._call(name, row)

    def exchange(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Given, Arguments], Any]:
        """Make alltoall; its result has the received splits where it was given splits."""
        return self._call(name, row)

    def exchange_async(
        self, name: str, row: Callable[Arguments, Request]
    ) -> Callable[Concatenate[Given, Arguments], Handle[tuple[Made, Any]]]:
        """Make alltoall in the background; its result always has the received splits."""
        return self._call(name, row)

    def _call(self, name: str, row: Callable[..., Request]) -> Callable[..., Any]:
        """Return the public function: `row` reads its arguments, its name decides the rest."""
        is_async, is_grouped = "_async" in name, name.startswith("grouped_")
        if self.orders is not None:
            row = _reordered(self.orders[name], row)
        signature = self._signature(row, is_async, is_grouped)

        def result(request: Request, outcome: Outcome) -> Any:
            made, sizes = outcome
            if isinstance(request.call, Exchange) and (is_async or request.splits is not None):
                return made[0], self.received(request.splits, sizes)
            return made if is_grouped else made[0]

        def call(*args: Any, **kwargs: Any) -> Any:
            if not args:  # the tensor has a keyword, or is missing
                bound = signature.bind(**kwargs)
                args, kwargs = bound.args, bound.kwargs
            request, tensors = row(*args[1:], **kwargs), args[0] if is_grouped else [args[0]]
            for each in tensors:
                require_elements(each, "tensor")
            if self.run is not None and not is_async:
                return result(request, self.run(request, tensors))
            started = request.call.start(self.arrays, tensors, request.splits)
            handle = started.then(lambda outcome: result(request, outcome))
            return handle if is_async else handle.wait()

        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__name__ = call.__qualname__ = name
        call.__module__, call.__doc__ = self.module, _effect(name, row)
        if self.run is not None and not is_async:
            call.__doc__ = f"{call.__doc__}\n\nThe result is differentiable."
        return call

    def _signature(
        self, row: Callable[..., Request], is_async: bool, is_grouped: bool
    ) -> Signature:
        name, given, made = "tensor", self.given, self.made
        if is_grouped:
            name, given, made = "tensors", GenericAlias(Sequence, given), GenericAlias(list, made)
        first = Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=given)
        others = inspect.signature(row).parameters.values()
        result = GenericAlias(Handle, made) if is_async else made
        return Signature([first, *others], return_annotation=result)


def _effect(name: str, row: Callable[..., Request]) -> str | None:
    """Return the docstring of a call."""
    waits = name.replace("_async", "")
    alone = waits.removeprefix("grouped_").removesuffix("_")
    if waits != name:
        return f"Start `{waits}`, without a gradient; `synchronize` returns its result."
    if waits.startswith("grouped_"):
        return f"Call `{alone}` for each tensor of a list; small ones travel together."
    if waits.endswith("_"):
        return f"Overwrite the tensor with the result of `{alone}`, and return it."
    return row.__doc__


def _reordered(order: str, row: Callable[..., Request]) -> Callable[..., Request]:
    """Return a row that takes its arguments, and others that are not used, in another order."""
    known = inspect.signature(row).parameters
    unused = {
        each: Parameter(each, Parameter.POSITIONAL_OR_KEYWORD, default=value)
        for each, value in NOT_USED.items()
    }
    signature = Signature([{**unused, **known}[each] for each in order.split()])

    def reordered(*args: Any, **kwargs: Any) -> Request:
        bound = signature.bind(*args, **kwargs).arguments
        return row(**{each: value for each, value in bound.items() if each in known})

    reordered.__signature__ = signature  # type: ignore[attr-defined]
    reordered.__doc__ = row.__doc__
    return reordered
