"""The element types that gradients are sent in: a framework's `Compression.none` and `.fp16`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


class Compressor:
    """Leaves tensors as they are; programs may define subclasses that make them smaller."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Return the tensor to send, and the context that `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Return the tensor as it was."""
        return tensor


@dataclass(frozen=True)
class Compression:
    """The values of `compression=` for one framework."""

    fp16: type[Compressor]
    none: type[Compressor] = Compressor


def compression(
    cast: Callable[[Any, Any], Any], float16: object, is_floating: Callable[[Any], bool]
) -> Compression:
    """Return the values of `compression=`.

    Args:
        cast: returns a tensor in another element type.
        float16: that type.
        is_floating: whether a tensor has floating-point numbers; others are sent as they are.
    """

    class FP16Compressor(Compressor):
        """Sends floating-point tensors as float16."""

        @staticmethod
        def compress(tensor: Any) -> tuple[Any, Any]:
            """See `Compressor`."""
            return cast(tensor, float16) if is_floating(tensor) else tensor, tensor.dtype

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            """See `Compressor`."""
            return cast(tensor, ctx)

    return Compression(FP16Compressor)


def compressed(
    compression: type[Compressor], tensors: Sequence[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Return the tensors to send, and a function that restores the results."""
    pairs = [compression.compress(each) for each in tensors]

    def restore(made: Sequence[Any]) -> list[Any]:
        contexts = [context for _, context in pairs]
        return list(map(compression.decompress, made, contexts))

    return [each for each, _ in pairs], restore
