"""vLLM on CPUs: HCCL_REPLACE=gloo:all gives its workers' groups and its collectives to hccl.

vLLM calls `register`, an entry point of `vllm.general_plugins`, in each of its processes before it
makes a group. A plug-in of `vllm.platform_plugins` would be passed over under
VLLM_TARGET_DEVICE=cpu, would hide vLLM's platform for Zen, and would show in the log of every run.
"""

import os
from typing import Any

_COMMUNICATOR = "hccl_py.integrations.vllm_communicator.HcclCommunicator"


def register() -> None:
    """Have vLLM's CPU platform use torch.distributed in place of its shared-memory kernel.

    `torch_backend/replace_gloo.py` has replaced gloo there. Without the setting nothing changes.
    """
    if os.environ.get("HCCL_REPLACE") != "gloo:all":
        return
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        platform: Any = type(current_platform)
        platform.get_device_communicator_cls = classmethod(lambda _: _COMMUNICATOR)
