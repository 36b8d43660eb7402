"""The interface of one rank to the control plane: its reports, and the diagnosis to adopt."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

Ended = tuple[int, bool, int]
"""A rank, whether it left with a goodbye, and its last collective if so."""


class Fate(Enum):
    """The state of a rank that sent no report."""

    DEAD = 0
    LEFT = 1
    UNKNOWN = 2  # it may be alive


class Absence(NamedTuple):
    """Why a rank sent no report."""

    fate: Fate
    text: str
    silent_s: float = 0.0


DEAD = Absence(Fate.DEAD, "dead")
NO_ANSWER = Absence(Fate.UNKNOWN, "no answer")


class Reporter(Protocol):
    """One rank of one communicator. The control thread calls it; nothing may block.

    Reports and diagnoses are opaque bytes to the control plane.
    """

    def news_fd(self) -> int:
        """Return an eventfd that signals a failure, a rank's end or an adopted diagnosis."""

    def ended_ranks(self) -> Sequence[Ended]:
        """List the ranks that left or died, even while no call is running.

        A lost rank may be alive and coordinate: it is listed once the diagnosis calls it dead.
        """

    def suspects(self) -> bool:
        """Return whether all ranks should report; called with every heartbeat.

        Reports that show no failure have no effect.
        """

    def has_failure(self) -> bool:
        """Return whether this rank observed a failure and waits for the diagnosis."""

    def report(self) -> tuple[bytes, float | None]:
        """Return this rank's report, and the seconds within which the others should report."""

    def diagnosis(self) -> bytes | None:
        """Return the diagnosis that this rank has adopted."""

    def adopt(self, diagnosis: bytes) -> None:
        """Adopt a diagnosis, but keep calls waiting until all ranks have it."""

    def conclude(self, diagnosis: bytes) -> None:
        """Adopt a diagnosis and fail all calls with it."""

    def diagnose(self, reports: Mapping[int, bytes], absent: Mapping[int, Absence]) -> bytes | None:
        """Decide, as the coordinator; None: the reports show no failure."""
