"""Rejects torch operations inside `hccl_py.capture()`, which a replay would omit.

This also finds torch's operations around a collective: functional collectives clone their input,
object collectives make tensors, and memory that is not contiguous is copied.
"""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from hccl_py.transport.errors import InvalidArgumentError


class OnlyCollectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Permits views, which compute nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))
        raise InvalidArgumentError(
            f"hccl_py.capture(): expected collectives on contiguous plain tensors, got {func}: "
            "a replay would leave it out; do it before or after the block (functional and object "
            "collectives cannot be recorded)"
        )
