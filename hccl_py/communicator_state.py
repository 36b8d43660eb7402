"""What the parts of one communicator share: its engine while it is open, and why it is not."""

from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from hccl_py.transport import _core
from hccl_py.transport.errors import AbortedError, HcclError

if TYPE_CHECKING:
    from hccl_py.diagnosis.errors import CallErrors
    from hccl_py.plan_cache import PlanCache


class Condition(Enum):
    """Whether calls can be made."""

    OPEN = "open"
    FAILED = "failed"
    CLOSED = "closed"
    FORKED = "of the parent process"


class CommunicatorState:
    """One rank's share of a communicator; its collectives, its Works and its reports hold this.

    Attributes:
        name: for messages.
        rank: of this process.
        world_size: number of ranks.
        timeout_s: default deadline of every call.
        plans: what each call runs, made at first use.
        errors: turns the engine's failures into exceptions.
        in_groups: whether `hccl_py.group()` collects the calls.
        core: the engine; None once the communicator is closed, or in a forked child.
    """

    def __init__(
        self, name: str, rank: int, world_size: int, timeout_s: float, core: _core.Communicator
    ) -> None:
        """Begin as open; `plans` and `errors` are set by the communicator."""
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.in_groups = True
        # None makes the engine's entries raise TypeError, so the fast path needs no check.
        self.core: Any = core
        self.plans: PlanCache
        self.errors: CallErrors
        self.barrier_byte = np.zeros(1, np.uint8)
        self.barrier_address = self.barrier_byte.ctypes.data
        self._end = Condition.CLOSED

    @property
    def condition(self) -> Condition:
        """Whether calls can be made now."""
        core = self.core
        if core is None:
            return self._end
        return Condition.FAILED if core.failed() else Condition.OPEN

    def require_engine(self) -> _core.Communicator:
        """Return the engine.

        Raises:
            AbortedError: there is none any more; the message says why.
        """
        core: _core.Communicator | None = self.core
        if core is None:
            raise self.end_error()
        return core

    def release_engine(self, end: Condition) -> None:
        """Hold the engine no longer. Its memory is freed once no Work holds it either."""
        self._end = end
        self.core = None

    def end_error(self) -> HcclError:
        """Return the error of a call on a communicator that is closed or of the parent process."""
        if self._end is Condition.FORKED:
            return AbortedError(
                "this process was forked from a rank and is no rank itself: the communicator "
                f"{self.name} belongs to its parent. Communicate in the parent, or start the "
                "process with the spawn method and make a communicator (init_process_group) there"
            )
        return AbortedError(
            f"[{self.name}, rank {self.rank} of {self.world_size}] the communicator is closed"
        )
