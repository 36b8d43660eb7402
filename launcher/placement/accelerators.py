"""Whether this host has an accelerator, found by its device files; and what frameworks are told."""

from collections.abc import Mapping
from pathlib import Path

USE_CPU = "ACCELERATE_USE_CPU"
"""Accelerate, and the Trainer of transformers with it, take a rank without it for a job alone."""
_DEVICES = (
    *("nvidia[0-9]*", "nvidiactl", "dxg"),  # CUDA; dxg under WSL
    "kfd",  # ROCm
    *("accel/*", "hl[0-9]*", "davinci[0-9]*", "neuron[0-9]*"),  # Gaudi, Ascend, Trainium
)
_DRIVERS_OF_XPU = ("i915", "xe")


def has_accelerator(root: Path = Path("/")) -> bool:
    """Return whether torch might find an accelerator here. The answer needs no torch."""
    if any(any((root / "dev").glob(pattern)) for pattern in _DEVICES):
        return True
    for node in (root / "dev/dri").glob("renderD*"):  # which display adapters have too
        driver = root / "sys/class/drm" / node.name / "device/driver"
        if driver.resolve().name in _DRIVERS_OF_XPU:
            return True
    return False


def framework_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the ranks' environment lacks; a setting of the user stays."""
    return {} if USE_CPU in environ or has_accelerator() else {USE_CPU: "true"}
