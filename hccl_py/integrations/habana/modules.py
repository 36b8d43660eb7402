"""The stand-ins for Habana's modules: the names of each, and their effect on a CPU.

Semantics follow the documentation of Gaudi's PyTorch integration. The lines with which Gaudi's own
examples begin are in `tests/integrations/gaudi_lines.py`; a name that this table lacks is an error
that lists the others. No file that this one imports imports torch.
"""

import os
from contextlib import nullcontext
from enum import Enum
from typing import Any

from hccl_py.integrations.habana.kinds import NO_EFFECT, At, Refused

ROOT = "habana_frameworks"
DATALOADER = "habana_dataloader"
_HERE = "hccl_py.integrations.habana"


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing, as the line says that rank 0 prints at the start."""


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


class _DeviceType(Enum):
    """The generations of Gaudi."""

    synDeviceGaudi = 1  # noqa: N815  # Habana's names
    synDeviceGaudi2 = 4  # noqa: N815
    synDeviceGaudi3 = 5  # noqa: N815


def _device_type() -> _DeviceType:
    return _DeviceType.synDeviceGaudi2  # programs have workarounds for the first Gaudi


def _module_cacher() -> Any:
    return lambda model, *_, **__: model


def _run(closure: Any, args: Any = ()) -> None:
    closure(*args)


def _at(place: str, *names: str) -> dict[str, At]:
    return {name: At(f"{place}:{name}") for name in names}


def _no_effect(*names: str) -> dict[str, Any]:
    return dict.fromkeys(names, NO_EFFECT)


def _refused(remedy: str, *names: str) -> dict[str, Refused]:
    return dict.fromkeys(names, Refused(remedy))


_SEEDS = {
    "manual_seed": At("torch:manual_seed"),
    "manual_seed_all": At("torch:manual_seed"),
    **_at("torch", "seed", "initial_seed"),
    "seed_all": At("torch:seed"),
    **_at(
        f"{_HERE}.hpu",
        *("get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all"),
    ),
}
_GRAPHS: dict[str, Any] = {
    "wrap_in_hpu_graph": _same_module,
    "make_graphed_callables": _same_module,
    "ModuleCacher": _module_cacher,
    **_refused(
        "run the same operations without a graph: the CPU runs each at once",
        *("HPUGraph", "graph", "CachedParams", "input_hash", "copy_to"),
    ),
}
_MEMORY: dict[str, Any] = {
    **_at(
        f"{_HERE}.hpu",
        *("memory_allocated", "max_memory_allocated", "memory_stats", "memory_summary"),
        "mem_get_info",
    ),
    "memory_reserved": At(f"{_HERE}.hpu:memory_allocated"),
    "max_memory_reserved": At(f"{_HERE}.hpu:max_memory_allocated"),
    **_no_effect("reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache"),
    **_no_effect("reset_max_memory_allocated", "extended_memory_summary_dict"),
}
_ENVIRONMENT = _no_effect(
    *("hpu_set_env", "hpu_reset_env", "hpu_set_inference_env", "hpu_inference_set_env"),
    *("hpu_inference_initialize", "hpu_teardown_inference_env"),
)
_TYPED = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_PIPELINES = "use torch's DataLoader and the transforms of torchvision"
_FP8 = "train in bfloat16 or float32"
_KERAS = "use Keras' own"

MODULES: dict[str, dict[str, Any]] = {
    ROOT: {},
    f"{ROOT}.tensorflow": {
        "load_habana_module": _nothing,
        **_refused(_KERAS, "HabanaEstimator", "backward_compatible_optimizers", "habana_ops"),
    },
    f"{ROOT}.tensorflow.distribute": _refused(
        "distribute by hccl_py.integrations.tensorflow or Horovod's API", "HPUStrategy"
    ),
    f"{ROOT}.tensorflow.habana_device": {"get_type": lambda: "CPU"},
    f"{ROOT}.tensorflow.multinode_helpers": {
        "comm_size": lambda: _initialize_distributed_hpu()[0],
        "comm_rank": lambda: max(0, _initialize_distributed_hpu()[1]),
        "comm_local_rank": lambda: max(0, _initialize_distributed_hpu()[2]),
        "comm_local_size": _device_count,
    },
    f"{ROOT}.tensorflow.ops": {},
    f"{ROOT}.tensorflow.ops.layer_norm": {
        "HabanaLayerNormalization": At("tensorflow.keras.layers:LayerNormalization")
    },
    f"{ROOT}.tensorflow.ops.instance_norm": _refused(_KERAS, "HabanaInstanceNormalization"),
    f"{ROOT}.tensorflow.media": _refused("use tf.data", "habana_imagenet_dataset"),
    f"{ROOT}.tensorflow.synapse_logger_helpers": {
        **_no_effect("synapse_logger_init"),
        **_refused("use tf.profiler", "SynapseLoggerHook"),
    },
    f"{ROOT}.tensorflow.py_synapse_logger": _no_effect("command", "start_logger", "stop_logger"),
    f"{ROOT}.torch": {},
    f"{ROOT}.torch.core": {
        "mark_step": _nothing,
        "hpu_initialize": _nothing,
        "add_step_closure": _run,
        "is_lazy": _is_lazy,
        # If False, a program permutes its weights for a Gaudi.
        "is_enabled_weight_permute_pass": _true,
        "hpu": At(f"{ROOT}.torch.hpu"),
        **_ENVIRONMENT,
    },
    f"{ROOT}.torch.core.hccl": {},
    f"{ROOT}.torch.core.quantization": _ENVIRONMENT,
    f"{ROOT}.torch.distributed": {},
    f"{ROOT}.torch.distributed.hccl": {"initialize_distributed_hpu": _initialize_distributed_hpu},
    f"{ROOT}.torch.dynamo": {},
    f"{ROOT}.torch.dynamo.compile_backend": {},
    f"{ROOT}.torch.dynamo.compile_backend.experimental": _no_effect("enable_compiled_autograd"),
    f"{ROOT}.torch.hpex": {},
    f"{ROOT}.torch.hpex.hmp": {"convert": _nothing, "disable_casts": nullcontext},
    f"{ROOT}.torch.hpex.kernels": {
        "FusedSDPA": At(f"{_HERE}.hpex:FusedSDPA"),
        "CTCLoss": At("torch.nn:CTCLoss"),
        "CustomNms": Refused("use torchvision.ops.nms"),
        **_refused(
            "write the rotation in torch",
            *("RotaryPosEmbeddingHelperV1", "RotaryPosEmbeddingHelperV2"),
            *("RotaryPosEmbeddingHelperV3", "RotaryPosEmbeddingMode", "apply_rotary_pos_emb"),
        ),
    },
    f"{ROOT}.torch.hpex.movingavrg": _refused(
        "use torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn", "FusedEMA"
    ),
    f"{ROOT}.torch.hpex.normalization": _at(f"{_HERE}.hpex", "FusedClipNorm", "FusedRMSNorm"),
    f"{ROOT}.torch.hpex.optimizers": {
        "FusedAdamW": At(f"{_HERE}.hpex:FusedAdamW"),
        "FusedAdagrad": At("torch.optim:Adagrad"),
        "FusedSGD": At("torch.optim:SGD"),
        "FusedResourceApplyMomentum": At("torch.optim:SGD"),
        **_refused("torch has none: use torch.optim.AdamW or SGD", "FusedLamb", "FusedLars"),
    },
    f"{ROOT}.torch.hpu": {
        **_SEEDS,
        **_GRAPHS,
        **_MEMORY,
        **{f"{kind}Tensor": At(f"torch:{kind}Tensor") for kind in _TYPED},
        **_at(f"{_HERE}.hpu", "Event", "Stream", "current_stream", "stream"),
        **_at(f"{_HERE}.hpu", "is_autocast_hpu_enabled", "get_autocast_hpu_dtype"),
        "default_stream": At(f"{_HERE}.hpu:current_stream"),
        "get_device_properties": At(f"{_HERE}.hpu:get_device_properties"),
        "hpu": At(f"{ROOT}.torch.hpu"),
        "is_available": _true,
        "is_initialized": _true,
        "is_bf16_supported": _true,
        "init": _nothing,
        "device_count": _device_count,
        "current_device": _current_device,
        "set_device": _nothing,
        "device": nullcontext,
        "sdp_kernel": lambda *_, **__: nullcontext(),
        "get_device_name": _device_name,
        "synchronize": _nothing,
        "enable_dynamic_shape": _nothing,
        "disable_dynamic_shape": _nothing,
        **_no_effect("setDeterministic", "enable_inference_mode", "disable_inference_mode"),
        **_no_effect("enable_const_section_serialization", "enable_quantization", "set_stream"),
    },
    f"{ROOT}.torch.hpu.graphs": _GRAPHS,
    f"{ROOT}.torch.hpu.memory": _MEMORY,
    f"{ROOT}.torch.hpu.metrics": _refused(
        "the CPU compiles no graphs", "metric_global", "metric_localcontext"
    ),
    f"{ROOT}.torch.hpu.random": _SEEDS,
    f"{ROOT}.torch.utils": {},
    f"{ROOT}.torch.utils.debug": {"_is_enabled_synapse_layout_handling": _true},
    f"{ROOT}.torch.utils.distributed_utils": {
        "initialize_distributed_hpu": _initialize_distributed_hpu
    },
    f"{ROOT}.torch.utils.experimental": {
        "_get_device_type": _device_type,
        "synDeviceType": _DeviceType,
        "hpu": At(f"{ROOT}.torch.hpu"),
    },
    f"{ROOT}.torch.utils.internal": {"is_lazy": _is_lazy},
    f"{ROOT}.torch.utils.lib_utils": _refused(
        "build the extension with torch.utils.cpp_extension", "get_include_dir", "get_lib_dir"
    ),
    f"{ROOT}.torch.utils.library_loader": {
        "load_habana_module": _nothing,
        "is_habana_available": _true,
        "is_habana_avaialble": _true,  # the name in Habana's older releases
    },
    DATALOADER: {
        "HabanaDataLoader": At("torch.utils.data:DataLoader"),
        **_refused(_PIPELINES, "fetch_habana_unet_loader"),
    },
    f"{DATALOADER}.habana_dataset": _refused(_PIPELINES, "ImageFolderWithManifest"),
    f"{DATALOADER}.habana_dl_app": _refused(_PIPELINES, "HabanaAcceleratedPytorchDL"),
    f"{DATALOADER}.aeon_config": _refused(_PIPELINES, "get_aeon_config"),
    f"{DATALOADER}.aeon_manifest": _refused(_PIPELINES, "generate_aeon_manifest"),
    f"{DATALOADER}.aeon_transformers": _refused(_PIPELINES, "HabanaAeonTransforms"),
}
"""The names of each module; its submodules are found by their own entries."""

WHOLLY_REFUSED = {f"{ROOT}.mediapipe": _PIPELINES, f"{ROOT}.medialoaders": _PIPELINES}
"""Packages whose every name is refused, with the remedy."""

ABSENT = {
    f"{ROOT}.torch.hpex.experimental": _FP8,
    f"{ROOT}.torch.hpex.kernels.Fp8Ops": _FP8,
    f"{ROOT}.torch.core.quantizer": _FP8,
    f"{ROOT}.torch.gpu_migration": 'write device "hpu" or "cpu", and init_process_group("hccl")',
    f"{ROOT}.torch.activity_profiler": "use torch.profiler",
}
"""Modules that programs try to import, and do without: the remedy of the ModuleNotFoundError."""
