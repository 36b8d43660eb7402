"""What gradients travel as. `Compression` of each framework has its own float16."""

from collections.abc import Callable, Sequence
from typing import Any


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


def compressed(
    compression: type[Compressor], tensors: Sequence[Any]
) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
    """Return what travels for the tensors, and what restores the results."""
    pairs = [compression.compress(each) for each in tensors]

    def restore(made: Sequence[Any]) -> list[Any]:
        contexts = [context for _, context in pairs]
        return list(map(compression.decompress, made, contexts))

    return [each for each, _ in pairs], restore
