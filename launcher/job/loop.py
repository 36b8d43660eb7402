"""The event loop of an agent's process, in its main thread."""

from collections.abc import Callable

from hccl_py.transport.control.loop import ControlLoop


class JobLoop(ControlLoop):
    """A loop that ends with the first exception: a job must not go on with half of its agents.

    Attributes:
        spared: children of this process that are no rank's, and stay when ranks are ended.
        why_killed: says who killed a rank on purpose; empty: nobody did.
    """

    longest_turn_s = 10.0  # a second's turns of a thousand waiting agents are half a core

    def __init__(self) -> None:
        """Serve nobody yet."""
        super().__init__(lambda: None)
        self.spared: set[int] = set()
        self.why_killed: Callable[[int], str] = lambda _: ""

    def guard(self, action: Callable[[], None]) -> None:
        """Call something."""
        action()
