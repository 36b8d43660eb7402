"""HCCL_HABANA_SHIM=1: programs for Gaudi run on the CPU, without Habana's packages.

modules   the stand-ins for Habana's modules, as one table
kinds     what a name of that table may be; hpu and hpex have the names that need code
finder    the import hook that serves them, in this process and spawned ones
device    "hpu" is the CPU for torch
runner    `DistributedRunner` of Optimum Habana, over hccl-launch

`start` does not import torch: a TensorFlow program does not need it, and a torch program may set
variables before the import.
"""

import importlib.util
import multiprocessing.spawn
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hccl_py.integrations.habana.finder import Finder
from hccl_py.integrations.habana.modules import ROOT

VARIABLE = "HCCL_HABANA_SHIM"
_FRAMEWORKS = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"}
"""Keeps DeepSpeed and Accelerate from detecting a Gaudi by the stand-in modules."""
_DISTRIBUTION = Path(__file__).parent / "distribution"
"""The metadata of "habana-torch-plugin", whose version Optimum Habana reads by `pip list`."""


def start() -> None:
    """Serve the stand-ins to this process, with a line on rank 0; exit if that is wrong."""
    if any(isinstance(each, Finder) for each in sys.meta_path):
        return
    if os.environ[VARIABLE] != "1":
        sys.exit(f"hccl: {VARIABLE}: expected 1, got {os.environ[VARIABLE]!r}")
    if importlib.util.find_spec(ROOT) is not None:
        sys.exit(
            f"hccl: {VARIABLE}: Habana's own {ROOT} is installed, and the shim would hide it: "
            "leave --habana-shim out, or use an environment without Habana's packages"
        )
    if os.environ.get("RANK", "0") == "0":
        print(
            f"hccl: {VARIABLE}=1: stands in for {ROOT}, torch.hpu and torch.hpex; "
            'device "hpu" is the CPU; mark_step, HPU graphs and hmp do nothing',
            file=sys.stderr,
            flush=True,
        )
    _install()


def _install() -> None:
    os.environ.update(_FRAMEWORKS)
    os.environ.setdefault("PT_HPU_LAZY_MODE", "0")  # eager mode, as on the CPU
    if str(_DISTRIBUTION) not in sys.path:  # as in a process of one that has it
        sys.path.append(str(_DISTRIBUTION))
        path = (os.environ.get("PYTHONPATH"), str(_DISTRIBUTION))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    sys.meta_path.insert(0, Finder(_map_hpu_to_cpu))
    spawn: Any = multiprocessing.spawn
    spawn.get_preparation_data = _with_shim(spawn.get_preparation_data)


def _map_hpu_to_cpu() -> None:
    from hccl_py.integrations.habana.device import map_hpu_to_cpu  # imports torch

    map_hpu_to_cpu()


class _InChild:
    """Starts the shim in a spawned process that unpickles this object.

    The process imports the main script next, which may name Habana's modules before torch.
    """

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _install_in_child, ()


def _install_in_child() -> None:
    if not any(isinstance(each, Finder) for each in sys.meta_path):
        _install()


def _with_shim(prepare: Callable[[str], dict[str, Any]]) -> Callable[[str], dict[str, Any]]:
    def prepared(name: str) -> dict[str, Any]:
        return {VARIABLE: _InChild(), **prepare(name)}

    return prepared
