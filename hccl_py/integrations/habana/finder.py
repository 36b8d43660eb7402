"""The import hook that serves the stand-ins for Habana's modules."""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from hccl_py.integrations.habana.kinds import Refused, resolve
from hccl_py.integrations.habana.modules import ABSENT, DATALOADER, MODULES, ROOT, WHOLLY_REFUSED

_TORCH = f"{ROOT}.torch"
_HOROVOD = "horovod"


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> object:
        inside = f"{self.__name__}.{name}"
        if inside in MODULES:  # as after `import habana_frameworks.torch as ht`
            return import_module(inside)
        remedy = _remedy_of_package(inside)
        kind = Refused(remedy) if remedy else MODULES.get(self.__name__, {}).get(name, _ABSENT)
        if kind is _ABSENT or name.startswith("__"):
            raise AttributeError(_missing(self.__name__, name))
        value = self.__dict__[name] = resolve(kind, self.__name__, name)
        return value


_ABSENT = object()


class Finder(MetaPathFinder, Loader):
    """Finds and loads the stand-ins; any other module of Habana is a ModuleNotFoundError.

    Where Horovod is not installed, its names are those of `hccl_py.horovod`.
    """

    def __init__(self, on_torch: Callable[[], None]) -> None:
        """Call `on_torch` when a program imports the stand-in for Habana's torch."""
        self._on_torch = on_torch

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a stand-in, and None for modules that are not Habana's."""
        if name in MODULES or _remedy_of_package(name):
            # All are packages, so `from module import missing` raises our error instead of Python's
            # "cannot import name".
            return ModuleSpec(name, self, is_package=True)
        parent, _, child = name.rpartition(".")
        if parent.partition(".")[0] in (ROOT, DATALOADER):
            raise ModuleNotFoundError(_missing(parent, child))
        if name.partition(".")[0] == _HOROVOD:
            return ModuleSpec(name, _Alias(f"hccl_py.{name}"), is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make the stand-in, which resolves its names when a program asks for them."""
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Prepare torch for the stand-ins of Habana's torch."""
        module.__dict__["__all__"] = list(MODULES.get(module.__name__, ()))
        if module.__name__ == _TORCH:
            import torch  # noqa: F401  # runs the next line, unless its entry points are off

            self._on_torch()


class _Alias(Loader):
    """Loads a module under a second name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # which the import has replaced


def _remedy_of_package(name: str) -> str | None:
    """Return the remedy where a module, or the module of a name, is refused as a whole."""
    return WHOLLY_REFUSED.get(".".join(name.split(".")[:2]))


def _missing(module: str, name: str) -> str:
    for absent, remedy in ABSENT.items():
        if f"{module}.{name}.".startswith(f"{absent}."):
            return f"hccl-py's shim does not have {module}.{name}: {remedy}"
    inside = f"{module}."
    children = {
        each[len(inside) :].partition(".")[0] for each in MODULES if each.startswith(inside)
    }
    has = ", ".join(sorted({*MODULES.get(module, ()), *children}))
    return f"hccl-py's shim does not have {module}.{name}; {module} has {has}"


def alias_under_torch() -> None:
    """Let `import torch.hpex` and `torch.hpu` find the stand-ins."""
    torch: Any = import_module("torch")
    for name in ("hpex", "hpex.hmp"):
        sys.modules[f"torch.{name}"] = import_module(f"{_TORCH}.{name}")
    torch.hpex = sys.modules["torch.hpex"]
    torch._register_device_module("hpu", import_module(f"{_TORCH}.hpu"))
