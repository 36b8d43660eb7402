"""The windows of torch's groups: `torch.distributed._new_window`, by `Communicator.window`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._C import _distributed_c10d as c10d

from hccl_py.torch_backend.checks.arguments import UNSET_TIMEOUT, seconds_of
from hccl_py.torch_backend.training.registered_tensors import register
from hccl_py.torch_backend.work import FINISHED, HcclWork, as_torch_error
from hccl_py.transport.errors import HcclError, InvalidArgumentError

if TYPE_CHECKING:
    import torch.distributed as dist

    from hccl_py.torch_backend.submit import CallingGroup


class TorchWindow:
    """The methods of torch's `Window`, which has no constructor in Python.

    Their arguments are those of `torch/csrc/distributed/c10d/Window.hpp`; ranks are the group's.
    All raise DistBackendError if the call fails, and InvalidArgumentError for a wrong argument.
    """

    def __init__(self, group: CallingGroup, tensor: Tensor | None) -> None:
        """Make a window of `group`, with a tensor or without; all ranks call it."""
        self._group = group
        self._window: Any = None
        if tensor is not None:
            self.tensor_register(tensor)

    def tensor_register(self, tensor: Tensor, owning: bool = True) -> None:
        """Expose a contiguous CPU tensor to the other ranks; all ranks call it.

        The tensor moves into registered memory, as by `hccl_py.register`, so that ranks of the node
        map it. One that cannot move stays, and puts into it are messages. The window keeps it,
        also if it is not `owning`.
        """
        if self._window is not None:
            raise InvalidArgumentError("tensor_register: the window has a tensor; deregister it")
        with contextlib.suppress(InvalidArgumentError, MemoryError):
            register(tensor)
        self._group.drain()
        with _torch_errors():
            self._window = self._group.communicator.window(tensor)

    def tensor_deregister(self) -> None:
        """Wait for all ranks' puts, and free the tensor; all ranks call it."""
        window, self._window = self._open, None
        with _torch_errors():
            window.close()

    def put(
        self,
        tensor: Tensor,
        dst_rank: int,
        target_offset_nelems: int,
        async_op: bool,
        opts: Any = None,
    ) -> dist.Work:
        """Copy `tensor` into the tensor of `dst_rank`, from that element on."""
        # A frame of Python costs a quarter of a small put.
        is_plain = self._window is not None and not async_op and opts is None
        if is_plain and self._window._put(tensor, dst_rank, target_offset_nelems):
            return FINISHED
        return self._call("put", async_op, opts, tensor, dst_rank, target_offset_nelems)

    def signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> dist.Work:
        """Signal a rank; the signal arrives after this rank's earlier puts to it."""
        return self._call("signal", async_op, opts, peer_rank)

    def wait_signal(self, peer_rank: int, async_op: bool, opts: Any = None) -> dist.Work:
        """Wait for a signal of a rank, and take it."""
        return self._call("wait_signal", async_op, opts, peer_rank)

    def map_remote_tensor(self, rank: int) -> Tensor:
        """Return a view of the tensor of a rank of this node, of one dimension."""
        view: Tensor = self._open.map_remote_tensor(rank)
        return view

    def get_attr(self, peer_rank: int) -> Any:
        """Return torch's WindowAttr: UNIFIED if this rank maps the peer's tensor."""
        types: Any = c10d  # torch 2.13 lacks them
        kinds, attributes = types.WindowAccessType, types.WindowAttr()
        is_mapped = self._open.is_mapped(peer_rank)
        attributes.access_type = kinds.UNIFIED if is_mapped else kinds.SEPARATE
        return attributes

    @property
    def _open(self) -> Any:
        if self._window is None:
            raise InvalidArgumentError("the window has no tensor; call tensor_register first")
        return self._window

    def _call(self, name: str, async_op: bool, opts: Any, *arguments: Any) -> dist.Work:
        timeout = UNSET_TIMEOUT if opts is None else opts.timeout
        limit_s = None if timeout == UNSET_TIMEOUT else seconds_of(timeout)
        calls = self._open.nonblocking if async_op else self._open
        with _torch_errors():
            native = getattr(calls, name)(*arguments, timeout_s=limit_s)
        return HcclWork([native], [], self._group.apart) if async_op else FINISHED


@contextlib.contextmanager
def _torch_errors() -> Any:
    try:
        yield
    except HcclError as error:
        raise as_torch_error(error)  # noqa: B904  # it names its cause
