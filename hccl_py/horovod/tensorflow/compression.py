"""What gradients travel as: `Compression.none` or `Compression.fp16`."""

from typing import Any

import tensorflow as tf


class Compressor:
    """Makes a tensor smaller for its way; programs may bring compressors of their own."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return what travels, and what `decompress` needs."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor as it was."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Leaves tensors as they are."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """See `Compressor`."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """See `Compressor`."""
        return tensor


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
