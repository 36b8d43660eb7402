"""A failure as one rank observed it, in values that travel to the coordinator.

`_core.Failure` is the same record in the engine; `engine/failure/failure.h` explains the fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hccl_py.transport import _core
from hccl_py.transport._core import Cause

_ACTIVITIES = {
    "send": "sending",
    "recv": "receiving",
    "recv_reduce": "receiving and reducing",
    "copy": "copying",
}


def word(cause: Cause) -> str:
    """Return a cause as errors spell it: `timed out`."""
    return cause.name.lower().replace("_", " ")


def decode(kind: Any, value: Any) -> Any:
    """Return the `kind` that `dataclasses.asdict` and msgpack made `value` of.

    Raises:
        TypeError, ValueError: it was made of something else.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        values = dict(value)
        for name, hint in _nested(kind):
            if name in values:
                values[name] = decode(hint, values[name])
        return kind(**values)
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple(decode(inner, one) for one in value) if _is_nested(inner) else tuple(value)
    if get_origin(kind) is UnionType:
        (inner,) = set(get_args(kind)) - {NoneType}
        return None if value is None else decode(inner, value)
    return kind(value) if isinstance(kind, type) and issubclass(kind, Enum) else value


@cache
def _nested(kind: Any) -> tuple[tuple[str, Any], ...]:
    """Return the fields whose values msgpack does not carry as they are, with their types."""
    return tuple((name, hint) for name, hint in get_type_hints(kind).items() if _is_nested(hint))


def _is_nested(hint: Any) -> bool:
    if get_origin(hint) is UnionType:
        return any(_is_nested(one) for one in get_args(hint))
    is_enum = isinstance(hint, type) and issubclass(hint, Enum)
    return is_dataclass(hint) or get_origin(hint) is tuple or is_enum


@dataclass(frozen=True)
class PathTrouble:
    """A connection to `rank` that is down, or unanswered."""

    rank: int
    name: str
    up: bool
    seconds: float
    reason: str

    def __str__(self) -> str:
        """Return what is wrong with it."""
        state = "unanswered" if self.up else "down"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name} {state} for {self.seconds:.1f} s{reason}"


@dataclass(frozen=True)
class Stage:
    """The step that a call is in; steps and tiles count from 1."""

    activity: str = ""
    step: int = 0
    num_steps: int = 0
    tile: int = 0
    num_tiles: int = 0

    def __str__(self) -> str:
        """Name the step."""
        if not self.num_steps:
            return "sending its last bytes" if self.activity == "flush" else "at its first step"
        doing = _ACTIVITIES.get(self.activity) or self.activity.replace("_", " ")
        doing = doing.replace("exchange addresses", "exchanging buffer addresses")
        tile = f", tile {self.tile} of {self.num_tiles}" if self.num_tiles > 1 else ""
        return f"in step {self.step} of {self.num_steps} ({doing}){tile}"


@dataclass(frozen=True)
class Failure:
    """See `_core.Failure`."""

    cause: Cause
    rank: int = -1
    call: int = 0
    sequence: int = 0
    observed_ns: int = 0
    their_call: int = 0
    sent_bytes: int | None = None
    expected_bytes: int | None = None
    sends: bool = False
    stage: Stage = Stage()
    waiting_for: tuple[int, ...] = ()
    half_done: bool = False
    paths: tuple[PathTrouble, ...] = ()
    process_lives: bool = False
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    last_sequence: int = 0
    reason: str = ""

    @classmethod
    def of(cls, native: _core.Failure) -> "Failure":
        """Copy the engine's record."""
        failure: Failure = decode(cls, _values(cls, native))
        return failure

    def sizes(self) -> str:
        """Return which two sizes of a message differ."""
        sent, expected = self.sent_bytes, self.expected_bytes
        if self.sends:
            return f"rank {self.rank} receives {expected} bytes where this rank sends {sent}"
        if not self.sequence:  # one recv
            return (
                f"a message of {sent} bytes came from rank {self.rank} "
                f"for a buffer of {expected} bytes"
            )
        return f"rank {self.rank} gives {sent} bytes where {expected} bytes were expected"


def _values(kind: Any, native: Any) -> Mapping[str, Any]:
    values = {one.name: getattr(native, one.name) for one in fields(kind)}
    if "stage" in values:
        values["stage"] = _values(Stage, values["stage"])
        values["paths"] = [_values(PathTrouble, path) for path in values["paths"]]
    return values
