"""A failure as one rank observed it, in values that travel to the coordinator.

`_core.Failure` is the same record inside the engine; csrc/engine/failure.h explains the fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hccl_py.transport._core import Cause

__all__ = ["Cause", "Failure", "PathTrouble", "Stage", "word"]


def word(cause: Cause) -> str:
    """Return a cause as errors spell it: `timed out`."""
    return cause.name.lower().replace("_", " ")


@dataclass(frozen=True)
class Stage:
    """Where a call stands; steps and tiles count from 1."""

    activity: str = ""
    step: int = 0
    num_steps: int = 0
    tile: int = 0
    num_tiles: int = 0

    def __str__(self) -> str:
        """Name the step."""
        if not self.num_steps:
            return "the end, sending the rest" if self.activity == "flush" else "the start"
        tile = f", tile {self.tile} of {self.num_tiles}" if self.num_tiles else ""
        return f"step {self.step} of {self.num_steps} ({self.activity}){tile}"


@dataclass(frozen=True)
class PathTrouble:
    """A connection to `rank` that is down, or unanswered."""

    rank: int
    name: str
    up: bool
    seconds: float
    reason: str

    def __str__(self) -> str:
        """Say what is wrong with it."""
        state = "unanswered" if self.up else "down"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name} {state} for {self.seconds:.1f} s{reason}"


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
    waiting_for: Sequence[int] = ()
    half_done: bool = False
    paths: Sequence[PathTrouble] = ()
    process_lives: bool = False
    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    last_sequence: int = 0
    reason: str = ""

    @classmethod
    def of(cls, failure: Any) -> "Failure":
        """Copy a `_core.Failure`."""
        values = {one.name: getattr(failure, one.name) for one in fields(cls)}
        values["stage"] = _copy(Stage, failure.stage)
        values["paths"] = [_copy(PathTrouble, path) for path in failure.paths]
        return cls(**values)

    def packed(self) -> dict[str, Any]:
        """Return what msgpack can carry."""
        return asdict(self) | {"cause": int(self.cause)}

    @classmethod
    def unpacked(cls, packed: Mapping[str, Any]) -> "Failure":
        """Read what `packed` returned; raises TypeError or ValueError for anything else."""
        values = dict(packed)
        values["cause"] = Cause(values["cause"])
        values["stage"] = Stage(**values["stage"])
        values["paths"] = [PathTrouble(**path) for path in values["paths"]]
        return cls(**values)


def _copy(to: type[Any], native: Any) -> Any:
    return to(*(getattr(native, one.name) for one in fields(to)))
