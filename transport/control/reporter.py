"""What the control plane asks of one rank: its reports, and to adopt the diagnosis."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

Ended = tuple[int, bool, int]
"""A rank, whether it left with a goodbye, and its last collective then."""


class Fate(Enum):
    """What became of a rank that sent no report."""

    DEAD = 0
    LEFT = 1
    UNKNOWN = 2  # it may live


class Absence(NamedTuple):
    """Why a rank sent no report."""

    fate: Fate
    text: str
    silent_s: float = 0.0


DEAD = Absence(Fate.DEAD, "dead")
NO_ANSWER = Absence(Fate.UNKNOWN, "no answer")


class Reporter(Protocol):
    """One rank of one communicator. The control thread calls it; nothing may block.

    Reports, and diagnoses which failure came first, are bytes that the control plane does not read.
    """

    def news_fd(self) -> int:
        """Return an eventfd: a failure was observed, a rank ended, a diagnosis was adopted."""

    def ended_ranks(self) -> Sequence[Ended]:
        """List the ranks that left or died, also while no call is under way.

        A rank that is lost may live and coordinate: it counts once the diagnosis calls it dead.
        """

    def suspects(self) -> bool:
        """Say whether all ranks shall report, asked with every heartbeat.

        Where the reports show no failure, nothing happens.
        """

    def has_failure(self) -> bool:
        """Say whether this rank observed a failure and waits for the diagnosis."""

    def report(self) -> tuple[bytes, float | None]:
        """Return what this rank observed, and in how many seconds the others shall report."""

    def diagnosis(self) -> bytes | None:
        """Return the diagnosis that this rank has adopted."""

    def adopt(self, diagnosis: bytes) -> None:
        """Adopt a diagnosis, but let calls wait until all ranks have it."""

    def conclude(self, diagnosis: bytes) -> None:
        """Adopt a diagnosis and end all calls by it."""

    def diagnose(self, reports: Mapping[int, bytes], absent: Mapping[int, Absence]) -> bytes | None:
        """Decide, as the coordinator; None: the reports show no failure."""
