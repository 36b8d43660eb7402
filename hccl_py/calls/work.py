"""The handle of a call that runs in the background."""

from dataclasses import dataclass
from typing import Protocol

from hccl_py.diagnosis.errors import CallErrors
from hccl_py.fingerprint import Call
from hccl_py.transport import _core
from hccl_py.transport.arguments import LONGEST_S, seconds
from hccl_py.transport.errors import CommunicatorError, InvalidArgumentError


class Native(Protocol):
    """The engine's Work, or a substitute."""

    def wait(self, timeout_s: float, /) -> bool:
        """Return whether the call ended in time; raise CommunicatorFailed if it failed."""

    def done(self) -> bool:
        """Whether the call has ended."""

    def failed(self) -> bool:
        """Whether the call has failed."""

    def source(self) -> int:
        """Return the source rank of a recv; -1 for other calls."""


@dataclass(frozen=True)
class NotBegun:
    """Replaces the engine's Work until the group of its call ends."""

    dropped: str = ""  # why the call never begins

    def wait(self, timeout_s: float) -> bool:
        """Raise InvalidArgumentError: the group has not ended, or the call was dropped."""
        raise InvalidArgumentError(
            f"the call was never started: {self.dropped}"
            if self.dropped
            else "the call has not been started: its hccl_py.group() is still open; wait after "
            "the block"
        )

    def done(self) -> bool:
        """Whether the call was dropped."""
        return bool(self.dropped)

    failed = done

    def source(self) -> int:
        """Return the engine's value for no source."""
        return -1


class Ended:
    """Replaces the engine's Work of a call that has ended."""

    def wait(self, timeout_s: float) -> bool:
        """Return at once."""
        return True

    def done(self) -> bool:
        """Whether the call has ended: yes."""
        return True

    def failed(self) -> bool:
        """Whether the call has failed: no."""
        return False

    def source(self) -> int:
        """Return the engine's value for no source."""
        return -1


# Handles of running calls that no program refers to any more; they keep the buffers alive. Every
# operation on the set is atomic, because any thread may drop a Work.
_dropped: set[Native] = set()


def release_finished() -> None:
    """Free the unreferenced handles whose calls have ended, and with them their engines."""
    if _dropped:
        _dropped.difference_update([work for work in tuple(_dropped) if work.done()])


def keep_until_done(native: Native) -> None:
    """Keep the handle of a running call that no thread waits for any more."""
    if not native.done():
        _dropped.add(native)


class Work:
    """One submitted call. The engine finishes it even if no thread waits for or keeps the Work.

    The buffers of the call belong to the engine until the work is done.
    """

    __slots__ = ("_call", "_errors", "_timeout_s", "native")

    def __init__(self, native: Native, errors: CallErrors, timeout_s: float, call: Call) -> None:
        self.native: Native = native
        self._errors = errors
        self._timeout_s = timeout_s
        self._call = call
        if _dropped:
            release_finished()

    def __del__(self) -> None:
        """Free the buffers, but not before the engine has ended the call."""
        if not self.native.done():
            _dropped.add(self.native)

    def wait(self, timeout_s: float | None = None) -> None:
        """Block until done; the waiting thread moves the bytes itself.

        Args:
            timeout_s: longest wait; None: the call's own timeout.

        Raises:
            CollectiveTimeoutError: this wait was too short; the call continues, and can be waited
                for again. Or the call's own deadline passed.
            CommunicatorError: the call failed.
        """
        limit_s = LONGEST_S if timeout_s is None else seconds("timeout_s", timeout_s)
        try:
            finished = self.native.wait(limit_s)
        except _core.CommunicatorFailed as failure:
            raise self._errors.of_call(failure, self._timeout_s, self._call) from None
        if not finished:
            assert timeout_s is not None
            raise self._errors.of_wait(timeout_s, self._timeout_s, self._call)

    def done(self) -> bool:
        """Whether the call has ended, successfully or not. Never blocks."""
        return self.native.done()

    def exception(self) -> CommunicatorError | None:
        """Return why the call failed; None while it runs or if it succeeded."""
        try:
            if self.native.failed():
                self.native.wait(0.0)
        except _core.CommunicatorFailed as failure:
            return self._errors.of_call(failure, self._timeout_s, self._call)
        return None

    @property
    def source(self) -> int | None:
        """The source rank of a finished recv."""
        peer = self.native.source()
        return peer if peer >= 0 else None
