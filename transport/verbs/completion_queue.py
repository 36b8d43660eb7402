"""Completion queue: where finished work requests are reported."""

from hccl_py.transport import _core

from ..errors import CompletionTimeoutError, InvalidArgumentError
from .device import Device
from .types import Completion, Opcode, Status


class CompletionQueue:
    """A queue of completions; ibv_cq. A context manager; threads may share it.

    Whoever polls or waits drives the queue pairs that report here.
    """

    def __init__(self, device: Device, capacity: int) -> None:
        """Make a queue (ibv_create_cq).

        Args:
            device: as for the queue pairs.
            capacity: completions that it holds; one more is an error that ends its use.
        """
        device.core  # noqa: B018 - raises if the device is closed
        self._core = _core.CompletionQueue(capacity)
        self._device = device
        self._closed = False
        device.adopt(self)

    def __enter__(self) -> "CompletionQueue":
        """Return self."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def core(self) -> _core.CompletionQueue:
        """The engine's object; raises InvalidArgumentError after close()."""
        if self._closed:
            raise InvalidArgumentError("the completion queue is closed")
        return self._core

    def poll(self, max_completions: int = 16) -> list[Completion]:
        """Take what is there; never waits (ibv_poll_cq).

        Raises:
            CompletionQueueOverflowError: completions were lost.
        """
        return [_completion(one) for one in self.core.poll(max_completions)]

    def wait(self, *, timeout_s: float, max_completions: int = 16) -> list[Completion]:
        """Take at least one completion; waits for it (ibv_get_cq_event, then ibv_poll_cq).

        Raises:
            CompletionTimeoutError: none came in time.
            CompletionQueueOverflowError: completions were lost.
        """
        completions = self.core.wait(max_completions, timeout_s)
        if not completions:
            raise CompletionTimeoutError(
                f"no completion in {timeout_s:g} s; is the peer alive, and is a RECV posted there?"
            )
        return [_completion(one) for one in completions]

    def close(self) -> None:
        """Close (ibv_destroy_cq); its queue pairs have to be closed before. Idempotent.

        Threads that wait on it raise InvalidArgumentError.
        """
        if not self._closed:
            self._closed = True
            self._core.close()
            self._device.disown(self)

    def leave_to_parent(self) -> None:
        """See `Device.leave_to_parent`."""
        self._closed = True


def _completion(fields: tuple[int, int, int, int, int | None, int]) -> Completion:
    wr_id, status, opcode, byte_len, imm, qp_num = fields
    return Completion(wr_id, Status(status), Opcode(opcode), byte_len, imm, qp_num)
