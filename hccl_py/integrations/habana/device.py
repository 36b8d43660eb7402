"""Maps the device "hpu" to the CPU: torch's functions get "cpu" for "hpu"."""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.overrides import TorchFunctionMode

from hccl_py.integrations.habana.finder import alias_under_torch

_TAKE_DEVICES = (torch.device, torch.Tensor.to, torch._C._nn._parse_to)
"""Functions that take a device by position. "hpu" means something else to others, like einsum."""


class _HpuIsCpu(TorchFunctionMode):
    """Replaces devices in the arguments of torch's functions, in the thread that enters it."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is torch.Tensor.pin_memory:
            return args[0]  # needed by accelerators only
        if function in _TAKE_DEVICES:
            if function is torch.device and _is_hpu(kwargs.get("type", args[0] if args else None)):
                return torch.device("cpu")  # without a device index
            args = tuple("cpu" if _is_hpu(each) else each for each in args)
        if _is_hpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return function(*args, **kwargs)


def _is_hpu(device: object) -> bool:
    if isinstance(device, str):
        return device.partition(":")[0] == "hpu"
    return isinstance(device, torch.device) and device.type == "hpu"


def map_hpu_to_cpu() -> None:
    """Map torch's device "hpu" to the CPU, in all threads from now on."""
    if hasattr(torch.Tensor, "hpu"):
        return  # the imports below call this again
    classes: tuple[Any, ...] = (torch.Tensor, torch.nn.Module)
    for each in classes:
        each.hpu = _itself
    alias_under_torch()  # needs the device's name, so before the mode
    # Torch's own reader of "hpu" has priority 24, and that of "cpu" 10.
    torch.serialization.register_package(11, lambda _: None, _read_storage)
    autocast: Any = autocast_mode.autocast
    autocast.__init__ = _for_cpu(autocast.__init__)
    compiler: Any = torch
    compiler.compile = _by_inductor(torch.compile)
    thread: Any = threading.Thread
    thread.start = _with_mode(thread.start)
    mode: Any = _HpuIsCpu()
    mode.__enter__()  # of this thread, permanently


def _itself(self: Any, *_: Any, **__: Any) -> Any:
    return self


def _read_storage(storage: Any, location: str) -> Any:
    """Load a storage that a file or `map_location` places on "hpu"."""
    return storage if _is_hpu(location) else None


def _for_cpu(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def on_cpu(self: Any, device_type: str, *rest: Any, **named: Any) -> None:
        init(self, "cpu" if _is_hpu(device_type) else device_type, *rest, **named)

    return on_cpu


def _by_inductor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Compile for a Gaudi's backend by torch's own for CPUs."""

    @functools.wraps(original)
    def on_cpu(*arguments: Any, **named: Any) -> Any:
        if named.get("backend") == "hpu_backend":
            named["backend"] = "inductor"
        return original(*arguments, **named)

    return on_cpu


def _with_mode(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def start_with_mode(self: Any) -> None:
        run = self.run

        def run_with_mode() -> None:
            with _HpuIsCpu():
                run()

        self.run = run_with_mode
        start(self)

    return start_with_mode
