"""Registers the backend "hccl" with torch, which calls `register` at the end of `import torch`.

An exception here would break `import torch` for every program on the machine, and a slow import
would slow all of them. So `register` imports almost nothing and raises nothing.
Frameworks that do not know the backend are adapted when the program imports them, not before.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Collection
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from hccl_py.torch_backend.collectives import TorchCollectives

from hccl_py.torch_backend import (
    AFTER_IMPORT,
    ALIAS,
    NAME,
    adopt_rank_of_scheduler,
    is_scheduled,
    let_signals_interrupt_rendezvous,
    watch_backend_names,
)

ADAPTERS = {
    "accelerate.state": "accelerate",
    "ignite.distributed.launcher": "ignite",
    "lightning.fabric.strategies": "lightning",
    "lightning.pytorch.strategies": "lightning",
    "lightning_fabric.strategies": "lightning",
    "optimum.habana.accelerate.accelerator": "optimum",
    "pytorch_lightning.strategies": "lightning",
    "transformers.trainer": "transformers",
    "transformers.training_args": "transformers",
}
"""By module of a framework, the module of hccl_py.integrations whose `adapt` takes it.

Each is imported after torch, even if a program imports the framework first; of transformers'
modules at least one is.
"""


def register() -> None:
    """Register the process group with torch for CPU tensors, under `ALIAS` and, if free, `NAME`.

    If another package owns `NAME`, one warning says that `ALIAS` reaches hccl-py.
    """
    try:
        import torch.distributed as dist

        if not dist.is_available() or ALIAS in dist.Backend.backend_list:
            return
        taken = NAME in dist.Backend.backend_list
        options: dict[str, Any] = {"extended_api": True, "devices": ["cpu"]}
        if hasattr(dist.Backend, "_ensure_backend_registered"):  # torch >= 2.14
            # A group keeps one backend of each type, so hccl beside another package's backend for
            # its device cannot have the type CUSTOM. No wheel of torch has a backend of type UCC.
            options["_backend_type"] = dist.ProcessGroup.BackendType.UCC
        for name in (ALIAS,) if taken else (ALIAS, NAME):
            # `devices` must be a list: torch reads the string "cpu" as the devices c, p and u.
            dist.Backend.register_backend(name, _create, **options)
        if taken:
            _warn_of_owner()
        else:
            watch_backend_names(_create, _warn_of_owner)
        sys.meta_path.insert(0, _AfterImport(ADAPTERS, _adapt))
        sys.meta_path.insert(
            0, _AfterImport(AFTER_IMPORT, lambda one: AFTER_IMPORT[one.__name__]())
        )
        importlib.import_module("hccl_py.integrations.guard.first_step").await_first_step()
        let_signals_interrupt_rendezvous()
        if is_scheduled():
            adopt_rank_of_scheduler()
        if os.environ.get("HCCL_REPLACE"):
            from hccl_py.torch_backend.groups.replace_gloo import replace_gloo

            replace_gloo()
        # hccl-launch imports torch for elastic jobs, and is not a rank.
        if os.environ.get("HCCL_HABANA_SHIM") and "hccl_py.launcher" not in sys.modules:
            from hccl_py.integrations.habana import start
            from hccl_py.integrations.habana.device import map_hpu_to_cpu

            start()
            map_hpu_to_cpu()
    except Exception as error:  # never break `import torch`
        _say(f"hccl_py could not register its backend with torch: {error!r}")


def register_without_torch() -> None:
    """Register at once if torch is imported already, else after its import.

    With TORCH_DEVICE_BACKEND_AUTOLOAD=0 torch calls no entry point; `import hccl_py` calls this.
    """
    if "torch" in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterImport(("torch",), lambda _: register()))


def _warn_of_owner() -> None:
    _say(
        f'another package has registered the torch.distributed backend "{NAME}"; '
        f'use init_process_group("{ALIAS}") for hccl_py'
    )


def _say(text: str) -> None:
    try:
        warnings.warn(text, stacklevel=4)
    except Warning:
        # Warnings are errors in this program, but an import must not fail by this one.
        print(f"hccl_py: {text}", file=sys.stderr)


class _AfterImport:
    """An import hook: nothing else would load hccl_py when these modules are imported."""

    def __init__(self, names: Collection[str], then: Callable[[ModuleType], None]) -> None:
        self._names, self._then = names, then
        self._sought: str | None = None

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return the module's own spec, whose loader calls `then` when it has run the module."""
        if name not in self._names or name == self._sought:
            return None
        self._sought = name
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._sought = None
        loader: Any = spec and spec.loader
        if hasattr(loader, "__dict__"):  # Python's loader of source files
            loader.exec_module = self._and_then(loader.exec_module)
        return spec

    def _and_then(self, run: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def exec_module(module: ModuleType) -> None:
            run(module)
            self._then(module)

        return exec_module


def _adapt(module: ModuleType) -> None:
    name = ADAPTERS[module.__name__]
    try:
        importlib.import_module(f"hccl_py.integrations.{name}").adapt(module)
    except Exception as error:  # the framework continues without hccl
        _say(f"hccl_py does not fit this version of {name}: {error!r}")


def _create(options: Any, backend_options: Any) -> TorchCollectives:
    from hccl_py.integrations.guard.guard import watch
    from hccl_py.torch_backend.groups.lifecycle import create

    # Torch does not tell a creator about a group's other backends; its caller has them.
    config = str(sys._getframe(1).f_locals.get("backend", NAME))
    group = create(options, config, backend_options)
    watch(group)
    return group
