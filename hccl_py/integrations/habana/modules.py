"""The stand-ins for Habana's modules: the names of each, and their effect on a CPU.

Semantics follow the documentation of Gaudi's PyTorch integration. Names without a meaning on a CPU,
such as the size of a device's memory, are absent: the error lists the others.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

ROOT = "habana_frameworks"


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: the CPU is done already, and has no Gaudi settings."""


def _true() -> bool:
    return True


def _is_lazy() -> bool:
    return os.environ.get("PT_HPU_LAZY_MODE") == "1"


def _initialize_distributed_hpu(
    world_size: int | None = None, rank: int | None = None, local_rank: int | None = None
) -> tuple[int, int, int]:
    """Return world size, rank and local rank; set their variables first if all are given."""
    given = {"WORLD_SIZE": world_size, "RANK": rank, "LOCAL_RANK": local_rank}
    if None not in given.values():
        os.environ.update({name: str(value) for name, value in given.items()})
    read = os.environ.get
    return int(read("WORLD_SIZE", 1)), int(read("RANK", -1)), int(read("LOCAL_RANK", -1))


def _device_count() -> int:
    """Return one device for each rank of this node: programs compare it with their local rank."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _current_device() -> int:
    return 0  # as on a Gaudi, where a process sees its own device only


def _device_name(_: Any = None) -> str:
    return "CPU"


def _same_module(module: Any, *_: Any, **__: Any) -> Any:
    return module


def _manual_seed(seed: int) -> None:
    import torch

    torch.manual_seed(seed)


_SEEDS = {"manual_seed": _manual_seed, "manual_seed_all": _manual_seed}
_GRAPHS = {"wrap_in_hpu_graph": _same_module}

MODULES: dict[str, dict[str, Any]] = {
    ROOT: {},
    f"{ROOT}.tensorflow": {"load_habana_module": _nothing},
    f"{ROOT}.torch": {},
    f"{ROOT}.torch.core": {
        "mark_step": _nothing,
        "hpu_initialize": _nothing,
        # If False, a program permutes its weights for a Gaudi.
        "is_enabled_weight_permute_pass": _true,
    },
    f"{ROOT}.torch.distributed": {},
    f"{ROOT}.torch.distributed.hccl": {"initialize_distributed_hpu": _initialize_distributed_hpu},
    f"{ROOT}.torch.hpex": {},
    f"{ROOT}.torch.hpex.hmp": {"convert": _nothing, "disable_casts": nullcontext},
    f"{ROOT}.torch.hpu": {
        **_SEEDS,
        **_GRAPHS,
        "is_available": _true,
        "is_initialized": _true,
        "init": _nothing,
        "device_count": _device_count,
        "current_device": _current_device,
        "set_device": _nothing,
        "get_device_name": _device_name,
        "synchronize": _nothing,
        "enable_dynamic_shape": _nothing,
        "disable_dynamic_shape": _nothing,
    },
    f"{ROOT}.torch.hpu.graphs": _GRAPHS,
    f"{ROOT}.torch.hpu.random": _SEEDS,
    f"{ROOT}.torch.utils": {},
    f"{ROOT}.torch.utils.distributed_utils": {
        "initialize_distributed_hpu": _initialize_distributed_hpu
    },
    f"{ROOT}.torch.utils.internal": {"is_lazy": _is_lazy},
    f"{ROOT}.torch.utils.library_loader": {
        "load_habana_module": _nothing,
        "is_habana_available": _true,
    },
}
"""The names of each module; its submodules are found by their own entries."""
