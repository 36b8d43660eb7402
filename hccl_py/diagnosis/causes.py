"""Why a communicator ended, in one word, and how that word travels with the engine's failures."""

from enum import Enum

PEER_LOST, TIMED_OUT, MISMATCH, ABORTED, INTERNAL = 1, 2, 3, 4, 5
"""FailureKind in csrc/failure.h."""

INTERRUPTED_TEXT = "a signal interrupted the call half-way"
CLOSED_SILENTLY = "its connections closed without a goodbye"
"""closed_silently_ in csrc/communicator.h."""
UNCAUGHT = "uncaught "
"""How the reason of an abort begins that an exception caused."""


class Cause(str, Enum):
    """What `CommunicatorError.cause` says."""

    DIED = "died"
    LEFT = "left"
    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed out"
    MISMATCH = "mismatch"
    EXCEPTION = "uncaught exception"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"
    INTERNAL = "internal error"

    def __str__(self) -> str:
        """Return the plain word."""
        return self.value


_LIMIT_BYTES = 4000  # most_text_bytes in csrc/control.h, less the cause


def seal(cause: Cause, text: str) -> str:
    """Put a verdict's cause before its text, as the engines carry it from rank to rank."""
    encoded = text.encode()
    if len(encoded) > _LIMIT_BYTES:
        text = encoded[: _LIMIT_BYTES - 4].decode(errors="ignore") + " ..."
    return f"{cause}\n{text}"


def unseal(sealed: str) -> tuple[Cause, str]:
    """Return cause and text of a verdict."""
    cause, _, text = sealed.partition("\n")
    return Cause(cause), text


def cause_of(kind: int, text: str) -> Cause:
    """Return the cause of a failure that is no verdict, by what the engine says of it."""
    if kind == PEER_LOST:
        if text.startswith("died"):
            return Cause.DIED
        return Cause.LEFT if text.startswith("left") else Cause.UNREACHABLE
    if kind == ABORTED:
        if text.startswith(UNCAUGHT):
            return Cause.EXCEPTION
        return Cause.INTERRUPTED if text == INTERRUPTED_TEXT else Cause.ABORTED
    plain = {TIMED_OUT: Cause.TIMED_OUT, MISMATCH: Cause.MISMATCH}
    return plain.get(kind, Cause.INTERNAL)
