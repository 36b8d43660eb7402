"""The handle of a call that runs in the background."""

from hccl_py.diagnosis.errors import Narrator
from hccl_py.fingerprint import Transfer
from hccl_py.transport import _core
from hccl_py.transport.errors import CollectiveTimeoutError, CommunicatorError

_UNLIMITED_S = 1e8

# Handles that nobody holds any more although their calls go on: they keep the buffers alive. Every
# operation on the set is atomic, because works are dropped on any thread.
_dropped: set[_core.Work] = set()


def let_go_of_ended() -> None:
    """Free the handles that nobody holds whose calls have ended, and with them their engines."""
    if _dropped:
        _dropped.difference_update([work for work in tuple(_dropped) if work.done()])


class Work:
    """One submitted call. The engine finishes it whether or not somebody waits, or keeps the Work.

    The buffers of the call belong to the engine until the work is done.
    """

    __slots__ = ("_call", "_core", "_narrator", "_timeout_s")

    def __init__(
        self, core: _core.Work, narrator: Narrator, timeout_s: float, call: int | Transfer
    ) -> None:
        """Wrap the engine's handle; `call` is for messages."""
        self._core = core
        self._narrator = narrator
        self._timeout_s = timeout_s
        self._call = call
        if _dropped:
            let_go_of_ended()

    def __del__(self) -> None:
        """Let go of the buffers, but not before the engine has."""
        if not self._core.done():
            _dropped.add(self._core)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until done; the waiting thread moves the bytes itself.

        Args:
            timeout_s: how long to wait here; None: as long as the call itself may take.

        Raises:
            CollectiveTimeoutError: this wait was too short; the call goes on and can be waited for
                again. Or the call's own deadline passed.
            CommunicatorError: the call failed.
        """
        try:
            finished = self._core.wait(_UNLIMITED_S if timeout_s is None else timeout_s)
        except _core.CommunicatorFailed as failure:
            raise self._narrator.tell(failure, self._timeout_s, self._call) from None
        if not finished:
            raise CollectiveTimeoutError(
                f"Timed out after {timeout_s:g} s of waiting for a work; the call itself goes on, "
                f"its own timeout is {self._timeout_s:g} s"
            )

    def done(self) -> bool:
        """Whether the call has ended, well or not. Never blocks."""
        return self._core.done()

    def exception(self) -> CommunicatorError | None:
        """Return why the call failed; None while it runs or if it went well."""
        if not self._core.failed():
            return None
        try:
            self._core.wait(0.0)
        except _core.CommunicatorFailed as failure:
            return self._narrator.tell(failure, self._timeout_s, self._call)
        return None

    @property
    def source(self) -> int | None:
        """The rank that a finished recv heard from."""
        peer = self._core.source()
        return peer if peer >= 0 else None
