"""The communicator of vLLM's tensor-parallel and pipeline-parallel groups, over hccl."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

from hccl_py.torch_backend.groups.backend import backend_of
from hccl_py.transport.errors import InvalidArgumentError


class HcclCommunicator(CpuCommunicator):  # type: ignore[misc]
    """vLLM's communicator for CPUs, whose calls all go to hccl's groups.

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
        backend = backend_of(self.device_group)
        self._communicator = None if backend is None else backend.communicator

    def all_reduce(self, input_: Tensor) -> Tensor:
        """Sum in place over the ranks.

        A layer has two small sums, and the Python of torch.distributed takes longer than each.
        """
        traced = torch.compiler.is_compiling()  # torch knows how to trace its own calls alone
        if self._communicator is None or traced or not input_.is_contiguous():
            super().all_reduce(input_)
        else:
            self._communicator.all_reduce(input_)
        return input_

    def _all_group_ranks_share_shm_group_name(self) -> bool:
        return False  # so vLLM makes no shared memory of its own
