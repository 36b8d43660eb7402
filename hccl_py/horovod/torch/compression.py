"""What gradients travel as: `Compression.none` or `Compression.fp16`."""

from typing import Any

import torch
from torch import Tensor

from hccl_py.horovod.compression import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, Any]:
        """See `Compressor`."""
        smaller = tensor.to(torch.float16) if tensor.is_floating_point() else tensor
        return smaller, tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """See `Compressor`."""
        return tensor.to(ctx)


class Compression:
    """The values of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
