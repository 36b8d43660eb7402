"""What the control plane asks of one rank: its reports, and to adopt the diagnosis."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

Report = dict[str, Any]
"""What one rank observed; may carry `window_s`, how long the other reports may take."""
Diagnosis = dict[str, Any]
"""The decision which failure came first."""
Ended = tuple[int, bool, int]
"""A rank, whether it left with a goodbye, and its last collective then."""


class Absent(Enum):
    """Why a rank sent no report."""

    DEAD = "dead"
    LEFT = "left"
    SILENT = "silent"
    NO_ANSWER = "no answer"


class Absence(NamedTuple):
    """Why a rank sent no report, and since when: its last collective, or seconds of silence."""

    why: Absent
    last_sequence: int = 0
    silent_s: float = 0.0

    @property
    def may_live(self) -> bool:
        """Whether the rank may be there all the same."""
        return self.why in (Absent.SILENT, Absent.NO_ANSWER)

    def __str__(self) -> str:
        """Name the reason."""
        if self.why is Absent.LEFT:
            return f"left after collective {self.last_sequence}"
        if self.why is Absent.SILENT:
            return f"silent for {self.silent_s:.1f} s"
        return str(self.why.value)


class Reporter(Protocol):
    """One rank of one communicator. The control thread calls it; nothing may block.

    Reports and diagnoses are mappings that msgpack can carry; the control plane does not read them.
    """

    def news_fd(self) -> int:
        """Return an eventfd: a failure was observed, a rank ended, a diagnosis was adopted."""

    def check_peers(self) -> None:
        """Notice ranks that ended although no call is under way."""

    def ended_ranks(self) -> Sequence[Ended]:
        """List the ranks that died or left, as far as this one knows."""

    def suspects(self) -> bool:
        """Say whether all ranks shall report, asked with every heartbeat.

        Where the reports show no failure, nothing happens.
        """

    def has_failure(self) -> bool:
        """Say whether this rank observed a failure and waits for the diagnosis."""

    def report(self) -> Report:
        """Return what this rank observed, how far it got, and what else it knows."""

    def diagnosis(self) -> Diagnosis | None:
        """Return the diagnosis that this rank has adopted."""

    def adopt(self, diagnosis: Diagnosis) -> None:
        """Adopt a diagnosis, but let calls wait until all ranks have it."""

    def conclude(self, diagnosis: Diagnosis) -> None:
        """Adopt a diagnosis and end all calls by it."""

    def diagnose(self, reports: Mapping[int, Report], absent: Mapping[int, Absence]) -> Diagnosis:
        """Decide, as the coordinator.

        Args:
            reports: by rank.
            absent: ranks without a report, and why.
        """
