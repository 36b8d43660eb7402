"""Imports and includes run only downhill: from a room to lower ones, in one total order.

A new room has to be given its place here.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"transport": "hccl_py.transport", "launcher": "hccl_py.launcher", "hccl_py": "hccl_py"}

ORDER = (
    *("quantities", "installation", "command_line"),
    *("transport", "transport.network", "transport.wire", "transport.providers"),
    *("transport.control", "transport.bootstrap", "transport.verbs"),
    *("memory", "plan", "compression", "algorithms", "fingerprint", "observe", "diagnosis"),
    *("calls", "schedulers", "progress_file", "own_algorithms", "membership", "engine"),
    "lifetime",
    *("graphs", "communicator", "torch_backend", "integrations", "launcher", "_autoload"),
    *("lab", "bench", "horovod", "capi"),  # the wings
    "",  # the package itself with its public names
)
"""Every room, lowest first, by its name after `hccl_py`: a room imports lower ones only."""

WINGS = {"lab", "bench", "horovod", "capi"}
"""Nothing imports them: each can be deleted from an installed package."""

CSRC_ORDER = (
    *("base", "base/memory", "progress", "lanes", "lanes/shared_memory"),
    *("verbs", "verbs/protocol", "verbs/software", "verbs/lane", "verbs/rdma", "reduce"),
    *("engine/calls", "engine/connection", "engine/collective", "engine/driver", "engine"),
    *("engine/graph", "simulation", "emulation", "bindings", "bindings/calls", "perftest"),
    *("include/hccl", "libhccl", "libsynapse"),
)
"""The same for C++: the folders below `csrc`."""

APART = "launcher"
"""Starts processes and imports no data path: of the others only the files of FOR_LAUNCHER. Only the
lab, a part of which `hccl-launch --emulate` loads by its name, and `hccl_py.spawn` import it."""

FOR_LAUNCHER = {
    *("hccl_py.schedulers", "hccl_py.command_line", "hccl_py.installation"),
    "hccl_py.transport.arguments",
    *("hccl_py.transport.errors", "hccl_py.transport.deadline", "hccl_py.transport.own_files"),
    *("hccl_py.transport.network.settings", "hccl_py.transport.network.interfaces"),
    *("hccl_py.transport.network.agreed", "hccl_py.transport.network.secret"),
    *("hccl_py.transport.network.identity", "hccl_py.transport.network.system_calls"),
    *(f"hccl_py.transport.providers.verbs.{name}" for name in ("choice", "devices", "library")),
    *(
        f"hccl_py.transport.providers.verbs.{name}"
        for name in ("listing", "locked_memory", "settings")
    ),
    *(f"hccl_py.transport.wire.{name}" for name in ("client", "frames", "handshake", "server")),
    *("hccl_py.transport.control.loop", "hccl_py.transport.threads"),
    "hccl_py.integrations.habana",
}
"""What hosts are, how ranks choose addresses and RDMA ports, an event loop with authenticated
sockets, files in folders of several users, what a rank of a program for Gaudi begins
with, and the parser of every command."""

TORCH_BACKEND = ORDER.index("torch_backend")
"""From this room on, torch may be imported."""

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


@cache
def imports(module: str, source: str) -> tuple[Import, ...]:
    """List what a module imports, wherever the statement stands."""
    found: list[Import] = []
    for node, is_lazy in statements(ast.parse(source), False):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, is_lazy, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source_name = absolute(module, node)
            for alias in node.names:
                full = f"{source_name}.{alias.name}"
                target = full if full in MODULES or source_name == "torch" else source_name
                found.append(Import(target, is_lazy, node.lineno))
    return tuple(found)


def statements(node: ast.AST, is_lazy: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Visit all statements below a node, with whether they stand in a function."""
    is_lazy = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child, is_lazy
            yield from statements(child, is_lazy)


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
    """Return the first name after `hccl_py`; of `transport` also the folder in it."""
    names = module.split(".")
    folder = ".".join(names[1:3])
    return folder if folder in ORDER and folder.startswith("transport.") else (names + [""])[1]


def rank(module: str) -> int:
    """Return the place of a module's room in the order."""
    name = room(module)
    if name not in ORDER:
        pytest.fail(f"{module}: its room has no place in ORDER of {Path(__file__).name}")
    return ORDER.index(name)


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
    if is_within(found.target, "benchmarks"):
        return "benchmarks are not installed"
    of_torch = is_within(found.target, "torch") or is_within(found.target, "hccl_py.torch_backend")
    if of_torch and is_within(module, HOROVOD) and not is_within(module, f"{HOROVOD}.torch"):
        return "only hccl_py.horovod.torch may need torch"
    if is_within(found.target, "hccl_py"):
        return offence_of_rooms(module, found.target)
    if room(module) == "plan" and found.target.split(".")[0] not in sys.stdlib_module_names:
        return "the plan needs the standard library only"
    if is_within(found.target, "torch") and rank(module) < TORCH_BACKEND:
        allowed = found.lazy and module in LAZY_TORCH
        return None if allowed else "torch stands above the communicator"
    return None


def offence_of_rooms(module: str, target: str) -> str | None:
    mine, theirs = room(module), room(target)
    if mine == theirs:
        return None
    if rank(target) > rank(module):
        return "uphill"
    if theirs in WINGS and mine:
        return "a wing"
    if mine == APART and not any(is_within(target, lent) for lent in FOR_LAUNCHER):
        return "the launcher stands apart"
    return "the launcher stands apart" if theirs == APART and mine not in ("lab", "") else None


@pytest.mark.parametrize("name", ORDER)
def test_modules_of_a_room_import_only_downhill(name: str) -> None:
    for module, path in MODULES.items():
        if room(module) == name:
            assert offences(module, path.read_text(encoding="utf-8")) == []


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


def test_order_names_every_room_once() -> None:
    assert sorted(ORDER) == sorted({room(module) for module in MODULES})


CSRC = [
    ROOT / folder / "csrc"
    for folder in ("transport", "hccl_py", "hccl_py/lab", "hccl_py/bench", "hccl_py/capi")
]
CPP = {
    path.relative_to(top).as_posix(): path
    for top in CSRC
    for path in sorted(top.rglob("*"))
    if path.suffix in (".h", ".cc")
}


def included(name: str) -> list[str]:
    return re.findall(r'^#include "(.*)"', CPP[name].read_text(encoding="utf-8"), re.MULTILINE)


def test_csrc_order_names_every_folder_once() -> None:
    assert sorted(CSRC_ORDER) == sorted({Path(name).parent.as_posix() for name in CPP})


@pytest.mark.parametrize("name", CPP)
def test_file_of_cpp_includes_only_downhill(name: str) -> None:
    mine = CSRC_ORDER.index(Path(name).parent.as_posix())
    theirs = {found: CSRC_ORDER.index(Path(found).parent.as_posix()) for found in included(name)}
    assert [found for found, place in theirs.items() if place > mine] == []


def test_no_headers_include_each_other_in_a_circle() -> None:
    assert list(TopologicalSorter({name: included(name) for name in CPP}).static_order())


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
        ("hccl_py.transport.network.sockets", "import hccl_py.transport.control.loop", "uphill"),
        ("hccl_py.bench.collective.main", "from hccl_py.lab import simulation", "a wing"),
    ],
)
def test_wrong_import_is_found(module: str, source: str, problem: str) -> None:
    (found,) = offences(module, source)
    assert problem in found
