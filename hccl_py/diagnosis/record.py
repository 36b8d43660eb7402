"""Reports of ranks and diagnoses of the coordinator, and their encoding."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]

from hccl_py.fingerprint import count_of, describe, without_number
from hccl_py.transport import _core
from hccl_py.transport._core import Cause

Record = TypeVar("Record")

_ACTIVITIES = {
    "send": "sending",
    "recv": "receiving",
    "recv_reduce": "receiving and reducing",
    "copy": "copying",
}


@dataclass(frozen=True)
class PathTrouble:
    """A connection to `rank` that is down, or up without answers."""

    rank: int
    name: str
    up: bool
    seconds: float
    reason: str

    def __str__(self) -> str:
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
        if not self.num_steps:
            return "sending its last bytes" if self.activity == "flush" else "at its first step"
        doing = _ACTIVITIES.get(self.activity, self.activity)
        tile = f", tile {self.tile} of {self.num_tiles}" if self.num_tiles > 1 else ""
        return f"in step {self.step} of {self.num_steps} ({doing}){tile}"


@dataclass(frozen=True)
class Failure:
    """A failure that one rank observed; `csrc/engine/calls/failure.h` explains the fields."""

    cause: Cause
    rank: int = -1
    call: int = 0
    sequence: int = 0
    their_call: int = 0
    sent_bytes: int | None = None
    expected_bytes: int | None = None
    sends: bool = False
    stage: Stage = Stage()
    waiting_for: Sequence[int] = ()
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
        paths = tuple(copied(PathTrouble, path) for path in native.paths)
        return copied(cls, native, stage=copied(Stage, native.stage), paths=paths)

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
        return f"rank {self.rank} sends {sent} bytes where {expected} bytes were expected"


@dataclass(frozen=True)
class Progress:
    """How far a rank's calls are; `csrc/engine/calls/failure.h` explains the fields."""

    submitted: int = 0
    finished: int = 0
    sequence: int = 0
    fingerprint: int = 0
    timeout_s: float = 0.0
    stage: Stage = Stage()
    bytes_done: int = 0
    bytes_total: int = 0
    waiting_for: Sequence[int] = ()
    num_transfers: int = 0
    out_of_reach: Sequence[int] = ()
    unlinked: Sequence[int] = ()

    @classmethod
    def of(cls, core: _core.Communicator) -> "Progress":
        """Copy an engine's present progress."""
        native = core.progress()
        return copied(cls, native, stage=copied(Stage, native.stage))

    @property
    def call(self) -> str:
        """Name and number of the call under way; "" if there is none."""
        if not self.sequence:
            return ""
        return f"{describe(without_number(self.fingerprint))} number {self.sequence}"


@dataclass(frozen=True)
class LoggedCall:
    """A collective that a rank made."""

    number: int
    fingerprint: int  # without the number, so that equal calls are equal
    num_bytes: int  # of its input or output, whichever is larger
    site: str = ""  # the user's line, with HCCL_DEBUG=1

    @property
    def key(self) -> tuple[int, int | None]:
        """Equal for equal calls: the fingerprint, and the number of elements if it must agree."""
        return self.fingerprint, count_of(self.fingerprint, self.num_bytes)

    def __str__(self) -> str:
        return describe(*self.key)


@dataclass(frozen=True)
class OtherCall:
    """A call under way in another communicator of the same process."""

    communicator_id: bytes
    name: str  # of that communicator
    call: str  # name and number
    stuck: bool  # a thread waits for it, without progress for two seconds
    waits_for: tuple[tuple[str, int], ...]  # host and pid of the ranks that it waits for


@dataclass(frozen=True)
class Report:
    """The knowledge of one rank at the time of a query."""

    failure: Failure | None = None  # that it observed
    progress: Progress = Progress()  # of its engine
    ended: tuple[Failure, ...] = ()  # ranks whose connections to this one ended
    calls: tuple[LoggedCall, ...] = ()  # its last collectives, oldest first
    single_threaded: bool = False  # one thread makes all calls of the process
    stuck: bool = False  # a thread waits for the call under way, without progress for two seconds
    stalled_s: float = 0.0  # how long the call under way has made no progress
    other_calls: tuple[OtherCall, ...] = ()  # of the same process, in other communicators
    stopped: tuple[int, ...] = ()  # ranks of its node that a signal holds

    def lost(self) -> set[int]:
        """Return the ranks that ended without a goodbye."""
        return {one.rank for one in self.ended if one.cause is not Cause.LEFT}

    def call(self, number: int) -> LoggedCall | None:
        """Return the collective of that number, if the log has it."""
        return next((one for one in self.calls if one.number == number), None)


@dataclass(frozen=True)
class Diagnosis:
    """Why all calls of a communicator ended; the same on all ranks."""

    cause: Cause
    text: str  # the whole message
    rank: int | None = None  # the culprit; None: no particular rank
    host: str | None = None  # of that rank's process
    pid: int | None = None
    sequence: int = 0  # of the call that failed; 0: none was under way
    fingerprint: int = 0  # of that call
    also: tuple[bytes, ...] = ()  # ids of other communicators that are also blocked
    dead: tuple[int, ...] = ()  # ranks that no other rank can reach any more


def copied(kind: type[Record], native: object, **parts: Any) -> Record:
    """Convert an engine's record to a class of this file with the same field names."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(native, name) for name in names} | parts)


_KINDS = (Report, Failure, Stage, PathTrouble, Progress, LoggedCall, OtherCall, Diagnosis)
"""Indexed by the number in a message."""


def encode(record: Report | Diagnosis) -> bytes:
    """Pack a record for the control plane and the engine."""
    packed: bytes = msgpack.packb(record, default=_extension)
    return packed


def decode(kind: type[Record], packed: bytes) -> Record:
    """Read what `encode` returned; raises TypeError, ValueError or IndexError for anything else."""
    record = msgpack.unpackb(packed, ext_hook=_record, use_list=False)
    if not isinstance(record, kind):
        raise TypeError(f"expected a packed {kind.__name__}, got {type(record).__name__}")
    return record


def _extension(record: Any) -> msgpack.ExtType:
    values = [getattr(record, one.name) for one in fields(record)]
    return msgpack.ExtType(_KINDS.index(type(record)), msgpack.packb(values, default=_extension))


def _record(number: int, packed: bytes) -> Any:
    values = msgpack.unpackb(packed, ext_hook=_record, use_list=False)
    names = [one.name for one in fields(_KINDS[number])]
    named = dict(zip(names, values, strict=True))
    if "cause" in named:
        named["cause"] = Cause(named["cause"])
    return _KINDS[number](**named)
