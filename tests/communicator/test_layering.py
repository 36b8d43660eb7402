"""Imports run only downhill: a file imports what stands lower, or in its own layer.

The layers are those of the design; a new file has to be given its place here.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"transport": "hccl_py.transport", "launcher": "hccl_py.launcher", "hccl_py": "hccl_py"}

LAYERS = [
    ("quantities", "command_line"),
    ("transport",),
    ("schedulers",),
    ("plan",),
    ("algorithms",),
    (
        *("communicator", "collectives", "submit", "work", "call_group", "plan_cache", "engine"),
        *(
            "compression",
            "fingerprint",
            "communicator_state",
            "own_algorithms",
            "memory",
            "membership",
        ),
        *("diagnosis", "observe", "graphs"),
    ),
    ("torch_backend",),
    ("integrations", "_autoload", "horovod"),
    ("simulation", "synthesis"),  # no job imports them
    ("", "bench", "plan_command", "emulation"),  # "" is the package itself, the public names
]
"""Lowest first, by the first name after `hccl_py`."""

APART = "launcher"
"""Starts processes and imports no data path: of the others only the files of FOR_LAUNCHER."""

FOR_LAUNCHER = {
    "hccl_py.schedulers",
    *("hccl_py.transport.errors", "hccl_py.transport.deadline", "hccl_py.transport.own_files"),
    *("hccl_py.transport.network.settings", "hccl_py.transport.network.interfaces"),
    *("hccl_py.transport.network.agreed", "hccl_py.transport.network.secret"),
    *("hccl_py.transport.network.identity", "hccl_py.transport.network.system_calls"),
    *(f"hccl_py.transport.providers.verbs.{name}" for name in ("choice", "devices", "library")),
    *(
        f"hccl_py.transport.providers.verbs.{name}"
        for name in ("listing", "locked_memory", "settings")
    ),
    *("hccl_py.transport.control.loop", "hccl_py.transport.control.listener"),
    "hccl_py.transport.threads",
    *("hccl_py.transport.control.sockets", "hccl_py.transport.control.curve"),
    "hccl_py.integrations.habana",
    "hccl_py.emulation.cluster",
}
"""What hosts are, how ranks choose addresses and RDMA ports, an event loop with authenticated
sockets, files in folders of several users, what a rank of a program for Gaudi begins with, and
which emulated nodes a file has."""

TORCH_BACKEND = 6
"""From this layer on, torch may be imported."""

LAZY_TORCH = {
    *("hccl_py.memory.registered", "hccl_py.memory.tensor_kinds"),
    "hccl_py.membership.environment",
}
"""Below it, these may import torch inside a function: who never calls it needs no torch."""

HOROVOD = "hccl_py.horovod"
"""Stands above torch, and imports none of it but in `hccl_py.horovod.torch`."""


class Import(NamedTuple):
    target: str
    lazy: bool
    line: int


def module_name(path: Path) -> str:
    folder, *inner = path.relative_to(ROOT).with_suffix("").parts
    names = [FOLDERS[folder], *inner]
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def sources() -> dict[str, Path]:
    return {
        module_name(path): path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "csrc" not in path.parts
    }


MODULES = sources()


def imports(module: str, source: str) -> Iterator[Import]:
    """List what a module imports, wherever the statement stands."""
    tree = ast.parse(source)
    lazy = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, id(node) in lazy, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            source_name = absolute(module, node)
            for alias in node.names:
                full = f"{source_name}.{alias.name}"
                target = full if full in MODULES or source_name == "torch" else source_name
                yield Import(target, id(node) in lazy, node.lineno)


def absolute(module: str, node: ast.ImportFrom) -> str:
    """Return the full name of what a `from` statement imports from."""
    if node.level == 0:
        return node.module or ""
    package = module.split(".")
    if module in MODULES and MODULES[module].name != "__init__.py":
        package.pop()
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, *([node.module] if node.module else [])])


def room(module: str) -> str:
    """Return the first name after `hccl_py`."""
    return (module.split(".") + [""])[1]


def layer(module: str) -> int | None:
    """Return the layer of one of our modules; None for the one that stands apart."""
    name = room(module)
    if name == APART:
        return None
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    pytest.fail(f"{module} has no place in the layers of {Path(__file__).name}")


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def offences(module: str, source: str) -> list[str]:
    return [
        f"{module}:{found.line} imports {found.target}: {problem}"
        for found in imports(module, source)
        if (problem := offence(module, found))
    ]


def offence(module: str, found: Import) -> str | None:
    """Say why a module must not import this; None if it may."""
    mine = layer(module)
    if is_within(found.target, "benchmarks"):
        return "benchmarks are not installed"
    of_torch = is_within(found.target, "torch") or is_within(found.target, "hccl_py.torch_backend")
    if of_torch and is_within(module, HOROVOD) and not is_within(module, f"{HOROVOD}.torch"):
        return "only hccl_py.horovod.torch may need torch"
    if is_within(found.target, "hccl_py"):
        theirs = layer(found.target)
        if mine is None or theirs is None:
            lent = any(is_within(found.target, module) for module in FOR_LAUNCHER)
            allowed = mine is theirs or (mine is None and lent)
            return None if allowed else "the launcher stands apart"
        return "uphill" if theirs > mine else None
    if room(module) == "plan" and found.target.split(".")[0] not in sys.stdlib_module_names:
        return "the plan needs the standard library only"
    if is_within(found.target, "torch") and mine is not None and mine < TORCH_BACKEND:
        allowed = found.lazy and module in LAZY_TORCH
        return None if allowed else "torch stands above the communicator"
    return None


@pytest.mark.parametrize("module", MODULES)
def test_module_imports_only_downhill(module: str) -> None:
    assert offences(module, MODULES[module].read_text(encoding="utf-8")) == []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types and inside functions count too."""
    waits_for = {
        module: {
            target
            for found in imports(module, path.read_text(encoding="utf-8"))
            if (target := _file_of(found.target)) and target != module
        }
        for module, path in MODULES.items()
    }
    assert list(TopologicalSorter(waits_for).static_order())  # CycleError names a circle


def _file_of(target: str) -> str:
    """Return the module that a name is in, or ""."""
    while target and target not in MODULES:
        target = target.rpartition(".")[0]
    return target


def test_every_named_room_exists() -> None:
    rooms = {room(module) for module in MODULES}
    named = {name for names in LAYERS for name in names} - {"torch_*"}
    assert named <= rooms
    assert APART in rooms


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("hccl_py.transport.bootstrap.full_mesh", "from hccl_py.plan import data", "uphill"),
        ("hccl_py.plan.verify", "from hccl_py.algorithms.table import named", "uphill"),
        ("hccl_py.transport.bootstrap.full_mesh", "from ...plan import data", "uphill"),
        ("hccl_py.communicator", "def f():\n    from hccl_py.torch_backend import types", "uphill"),
        ("hccl_py.plan.verify", "import numpy as np", "standard library only"),
        ("hccl_py.communicator", "import torch", "torch stands above"),
        ("hccl_py.horovod.world", "def f():\n    import torch", "may need torch"),
        ("hccl_py.launcher.job", "from hccl_py.transport import arena", "stands apart"),
        ("hccl_py.bench.collective.main", "from hccl_py.launcher import job", "stands apart"),
        ("hccl_py.bench.collective.main", "from benchmarks import peers", "not installed"),
    ],
)
def test_wrong_import_is_found(module: str, source: str, problem: str) -> None:
    (found,) = offences(module, source)
    assert problem in found
