"""What one of the rules found out."""

from typing import NamedTuple

from hccl_py.transport._core import Cause


class Finding(NamedTuple):
    """A cause, the rank that caused it, the call that met it, and the text.

    Attributes:
        cause: its kind.
        rank: None: nobody in particular.
        call: number and fingerprint; 0, 0: none was under way.
        text: what happened, without the name of the call.
        also: ids of other communicators that cannot go on either.
    """

    cause: Cause
    rank: int | None
    call: tuple[int, int]
    text: str
    also: tuple[bytes, ...] = ()
