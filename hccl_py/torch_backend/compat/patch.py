"""A change to torch, and the ways to make one."""

import functools
import pkgutil
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from hccl_py.torch_backend import AFTER_IMPORT

Function = Callable[..., Any]

_libraries: list[Any] = []
"""Registrations of kernels; each lasts as long as its object."""


def replace(target: str, replacement: Function) -> None:
    """Put `replacement` in the place of a function, which it gets as its first argument."""
    owner_name, _, name = target.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def replaced(*arguments: Any, **options: Any) -> Any:
        return replacement(original, *arguments, **options)

    setattr(owner, name, replaced)
    # torch.distributed has its own references to some functions of distributed_c10d.
    if getattr(dist, name, None) is original:
        setattr(dist, name, replaced)


def replace_once_imported(target: str, replacement: Function) -> None:
    """Like `replace`, for a function of a module whose import would take a second."""
    owner, _, name = target.rpartition(".")[0].rpartition(".")
    module = owner if name[0].isupper() else f"{owner}.{name}"  # a class is part of its module
    if module in sys.modules:
        replace(target, replacement)
    else:
        AFTER_IMPORT[module] = lambda: replace(target, replacement)


def replace_in_dynamo(target: str, replacement: Function) -> None:
    """Have Dynamo trace `replacement` where a compiled function calls `target` of torch."""
    functional.traceable_collective_remaps[pkgutil.resolve_name(target)] = replacement
    setattr(functional, replacement.__name__, replacement)  # where Dynamo's guards look for it


def implement(target: str, kernel: Function) -> None:
    """Register `kernel` for an operator on CPU tensors, if this torch has the operator."""
    _, _, namespace, name = target.split(".")
    if hasattr(getattr(torch.ops, namespace), name):
        library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
        library.impl(name, kernel, "CPU")  # type: ignore[no-untyped-call]
        _libraries.append(library)


def call(_: str, change: Function) -> None:
    """Call `change`, which finds what it changes by itself."""
    change()


class Patch(NamedTuple):
    """One change to torch: `apply` replaces the dotted name `target` by `function`."""

    target: str
    function: Function
    apply: Callable[[str, Function], None] = replace

    @property
    def reason(self) -> str:
        """The failure without the change."""
        return " ".join((self.function.__doc__ or "").split())
