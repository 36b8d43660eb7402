"""What passes between the command and its rank processes; no torch here, the command reads it."""

from __future__ import annotations

from dataclasses import dataclass

from hccl_py.bench.collective.contender import Endpoint, Open


@dataclass(frozen=True)
class Assignment:
    """Who a rank process is and what it works with.

    Attributes:
        rank: its rank.
        namespace: network namespace to work in; None: the command's own.
        environment: what a launcher would set.
        contenders: what to measure, and where each one's ranks meet.
    """

    rank: int
    namespace: str | None
    environment: dict[str, str]
    contenders: tuple[tuple[Open, Endpoint], ...]


@dataclass(frozen=True)
class Checked:
    """The outcome of one checked call on one rank; times are comparable within a host."""

    num_wrong: int
    entered_ns: int
    left_ns: int


@dataclass(frozen=True)
class Failed:
    """A rank's last words: what it raised, in one line; in full too unless it is a wrong input."""

    error: str
    traceback: str


@dataclass(frozen=True)
class Counted:
    """What one rank's engine has counted so far, in seconds."""

    late_s: float
    moving_s: float
    copy_s: float
    reduce_s: float
    wire_s: float
