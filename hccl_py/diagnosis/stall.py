"""When a rank that waits should have the ranks compare their calls, long before its time is up.

Ranks that called different things notice it by the messages they get; but they may have called
what makes each wait for another and send nothing. Then nothing moves any more, and the control
plane has to look.
"""

from hccl_py.transport import _core

_FIRST_LOOKS = 4  # heartbeats: about a second
_FACTOR = 2  # a rank may well wait for long; then it asks after 1, 2, 4, 8 ... seconds


class Patience:
    """Counts for how many looks a rank's engine has been in one and the same call.

    Attributes:
        looks: so many.
    """

    def __init__(self, core: _core.Communicator) -> None:
        """Look at `core`."""
        self._core = core
        self._num_finished = 0
        self.looks = 0
        self._limit = _FIRST_LOOKS

    def lost(self) -> bool:
        """Look once more; True if it is time to ask the others what they do."""
        num_finished = self._core.num_finished()
        if num_finished != self._num_finished or num_finished == self._core.sequence():
            self._num_finished = num_finished
            self.looks, self._limit = 0, _FIRST_LOOKS
            return False
        self.looks += 1
        if self.looks < self._limit:
            return False
        self._limit *= _FACTOR
        return True
