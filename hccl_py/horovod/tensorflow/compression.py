"""What gradients travel as: `Compression.none` or `Compression.fp16`."""

from typing import Any

import tensorflow as tf

from hccl_py.horovod.compression import Compressor, NoneCompressor


class FP16Compressor(Compressor):
    """Sends floating-point tensors as float16."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """See `Compressor`."""
        return tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """See `Compressor`."""
        return tf.cast(tensor, ctx)


class Compression:
    """The values of `compression=`."""

    none = NoneCompressor
    fp16 = FP16Compressor
