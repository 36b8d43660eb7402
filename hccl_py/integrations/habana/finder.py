"""The import hook that serves the stand-ins for Habana's modules."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hccl_py.integrations.habana.modules import MODULES, ROOT

_TORCH = f"{ROOT}.torch"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        if f"{self.__name__}.{name}" in MODULES:  # as after `import habana_frameworks.torch as ht`
            return import_module(f"{self.__name__}.{name}")
        raise AttributeError(_missing(self.__name__, name))


class Finder(MetaPathFinder, Loader):
    """Finds and loads the stand-ins; any other module of Habana is a ModuleNotFoundError."""

    def __init__(self, on_torch: Callable[[], None]) -> None:
        """Call `on_torch` when a program imports the stand-in for Habana's torch."""
        self._on_torch = on_torch

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a stand-in, and None for modules that are not Habana's."""
        if name in MODULES:
            # All are packages, so `from module import missing` raises our error instead of Python's
            # "cannot import name".
            return ModuleSpec(name, self, is_package=True)
        parent, _, child = name.rpartition(".")
        if parent.partition(".")[0] == ROOT:
            raise ModuleNotFoundError(_missing(parent, child))
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Define the stand-in's names."""
        module.__dict__.update(MODULES[module.__name__])
        if module.__name__ == _TORCH:
            import torch  # noqa: F401  # runs the next line, unless its entry points are off

            self._on_torch()


def _missing(module: str, name: str) -> str:
    inside = f"{module}."
    children = {
        each[len(inside) :].partition(".")[0] for each in MODULES if each.startswith(inside)
    }
    has = ", ".join(sorted({*MODULES[module], *children}))
    return f"hccl-py's shim does not have {module}.{name}; {module} has {has}"


def alias_under_torch() -> None:
    """Let `import torch.hpex` and `torch.hpu` find the stand-ins."""
    torch: Any = import_module("torch")
    for name in ("hpex", "hpex.hmp"):
        sys.modules[f"torch.{name}"] = import_module(f"{_TORCH}.{name}")
    torch.hpex = sys.modules["torch.hpex"]
    torch._register_device_module("hpu", import_module(f"{_TORCH}.hpu"))
