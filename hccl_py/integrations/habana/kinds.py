"""The kinds of names that a stand-in has, besides plain values.

At         the same thing elsewhere, imported when a program asks for it
NO_EFFECT  a function that does nothing, and says so once on rank 0
Refused    a class that raises when a program uses it, with what to write instead
"""

import os
import sys
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import Any, NamedTuple


class At(NamedTuple):
    """A name of another module, such as "torch.optim:SGD"; without a name, the module."""

    place: str


class Refused(NamedTuple):
    """A name that programs may import, subclass and compare, and not use."""

    remedy: str


class Effect(Enum):
    """What a function does."""

    NONE = 0


NO_EFFECT = Effect.NONE


def resolve(kind: Any, module: str, name: str) -> Any:
    """Return the value that a program gets for `name` of `module`."""
    if isinstance(kind, At):
        place, _, attribute = kind.place.partition(":")
        found = import_module(place)
        return getattr(found, attribute) if attribute else found
    if isinstance(kind, Refused):
        return _refused(f"{module}.{name}", kind.remedy)
    return _without_effect(f"{module}.{name}") if kind is NO_EFFECT else kind


def _without_effect(name: str) -> Callable[..., None]:
    said = False

    def nothing(*_: object, **__: object) -> None:
        nonlocal said
        if not said and os.environ.get("RANK", "0") == "0":
            print(f"hccl: {name} has no effect on the CPU", file=sys.stderr, flush=True)
        said = True

    return nothing


class _Refusing(type):
    remedy: str

    def __call__(cls, *_: object, **__: object) -> None:
        raise NotImplementedError(cls.remedy)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError(cls.remedy)


def _refused(name: str, remedy: str) -> type:
    text = f"hccl-py's shim does not run {name} on the CPU: {remedy}"
    return _Refusing(name.rpartition(".")[2], (), {"remedy": text})
