"""The communicator of vLLM's tensor-parallel and pipeline-parallel groups, over hccl."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from hccl_py.transport.errors import InvalidArgumentError


class HcclCommunicator(CpuCommunicator):  # type: ignore[misc]
    """vLLM's communicator for CPUs, whose calls all go to torch.distributed.

    `GroupCoordinator` of vLLM sends dictionaries of tensors by `isend` then.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.dist_module is not dist:
            raise InvalidArgumentError(
                f"vLLM's communicator uses {type(self.dist_module).__name__} in place of "
                "torch.distributed: this version of vLLM does not fit hccl-py; start it without "
                "HCCL_REPLACE=gloo:all"
            )

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False  # so vLLM makes no shared memory of its own
