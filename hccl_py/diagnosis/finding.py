"""What one of the rules has found out."""

from typing import NamedTuple

from hccl_py.diagnosis.record import Cause


class Finding(NamedTuple):
    """A cause, whose doing it was, the call that met it, and the words for it.

    Attributes:
        cause: in one word.
        rank: None: nobody's in particular.
        call: sequence and fingerprint; 0, 0: none was under way.
        text: what happened, without the name of the call.
        also: ids of other communicators that cannot go on either.
    """

    cause: Cause
    rank: int | None
    call: tuple[int, int]
    text: str
    also: tuple[bytes, ...] = ()
