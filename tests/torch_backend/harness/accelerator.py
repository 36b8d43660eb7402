"""The accelerator that tests of staged tensors run on.

It is the one that torch finds (cuda, xpu). Of a device that has to be imported (PrivateUse1) name
the module: HCCL_TEST_ACCELERATOR_MODULE=torch_openreg. All ranks share its first device.
"""

import importlib
import os
from typing import Any

import pytest
import torch

MODULE = "HCCL_TEST_ACCELERATOR_MODULE"


def device() -> torch.device | None:
    """Return the device, None where there is none."""
    if os.environ.get(MODULE):
        importlib.import_module(os.environ[MODULE])
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return None if accelerator is None else torch.device(accelerator.type, 0)


needs_accelerator = pytest.mark.skipif(
    device() is None, reason="needs an accelerator that torch knows"
)


def here() -> torch.device:
    """Return the device, which there is."""
    found = device()
    assert found is not None
    return found


def keep_busy(seconds: float) -> None:
    """Give the current stream something to do that takes about so long."""
    module: Any = torch.get_device_module(here())
    module._sleep(int(seconds * 1e9))
