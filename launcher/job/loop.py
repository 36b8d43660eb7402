"""The event loop of an agent's process, in its main thread."""

from collections.abc import Callable

from hccl_py.transport.control.loop import ControlLoop


class JobLoop(ControlLoop):
    """A loop that ends with the first exception: a job must not continue with half of its agents.

    Attributes:
        spared: child processes that belong to no rank, and are not ended with ranks.
        why_killed: reason why a rank was killed on purpose; empty: none was.
    """

    longest_turn_s = 10.0  # a turn per second of a thousand waiting agents takes half a core

    def __init__(self) -> None:
        """Create the loop without services."""
        super().__init__(lambda: None)
        self.spared: set[int] = set()
        self.why_killed: Callable[[int], str] = lambda _: ""

    def guard(self, action: Callable[[], None]) -> None:
        """Run an action, whose exception ends the loop."""
        action()
