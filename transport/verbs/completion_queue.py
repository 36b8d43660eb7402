"""Completion queue: where finished work requests are reported."""

from hccl_py.transport import _core
from hccl_py.transport.errors import CompletionTimeoutError
from hccl_py.transport.providers.verbs.types import Completion, Opcode, Status
from hccl_py.transport.verbs.device import Device, Resource


class CompletionQueue(Resource[_core.CompletionQueue]):
    """A queue of completions; ibv_cq. A context manager; threads may share it.

    A thread that polls or waits drives the queue pairs that report here. close() ends other
    threads' waits, which raise InvalidArgumentError.
    """

    closes_after_siblings = True

    def __init__(self, device: Device, capacity: int) -> None:
        """Make a queue (ibv_create_cq).

        Args:
            device: device of the queue pairs.
            capacity: completions that it holds; an overflow makes it unusable.
        """
        super().__init__(device, _core.CompletionQueue(capacity))

    def poll(self, max_completions: int = 16) -> list[Completion]:
        """Return the completions that are there, without waiting (ibv_poll_cq).

        Raises:
            CompletionQueueOverflowError: completions were lost.
        """
        return [_completion(one) for one in self.core.poll(max_completions)]

    def wait(self, *, timeout_s: float, max_completions: int = 16) -> list[Completion]:
        """Wait for and return at least one completion (ibv_get_cq_event, then ibv_poll_cq).

        Raises:
            CompletionTimeoutError: none arrived in time.
            CompletionQueueOverflowError: completions were lost.
        """
        completions = self.core.wait(max_completions, timeout_s)
        if not completions:
            raise CompletionTimeoutError(
                f"no completion in {timeout_s:g} s; is the peer alive, and is a RECV posted there?"
            )
        return [_completion(one) for one in completions]

    def _release(self) -> None:
        self._core.close()


def _completion(fields: tuple[int, int, int, int, int | None, int]) -> Completion:
    wr_id, status, opcode, byte_len, imm, qp_num = fields
    return Completion(wr_id, Status(status), Opcode(opcode), byte_len, imm, qp_num)
