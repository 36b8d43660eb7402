"""Whom the control plane speaks for: what a rank has to offer to be coordinated."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

Report = dict[str, Any]
"""What one rank saw; may carry `window_s`, the longest wait for others that it can bear."""
Verdict = dict[str, Any]
Lost = tuple[int, bool, int]
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


class Principal(Protocol):
    """One rank of one communicator. Called on the control plane's thread; nothing may block.

    Reports and verdicts are mappings that msgpack can carry; nobody below reads them.
    """

    def news_fd(self) -> int:
        """Return an eventfd: a failure was proposed, a rank was lost, a verdict was adopted."""

    def look(self) -> None:
        """Notice deaths although no call is under way."""

    def lost(self) -> Sequence[Lost]:
        """List the ranks that died or left, as far as this one knows."""

    def failing(self) -> bool:
        """Say whether this rank proposes a failure and waits for the verdict."""

    def report(self) -> Report:
        """Tell what this rank proposes, how far it got, and what else it knows."""

    def verdict(self) -> Verdict | None:
        """Return the verdict that this rank has adopted, from whomever it came."""

    def adopt(self, verdict: Verdict) -> None:
        """Take over a verdict, unless there is one; no call ends by it before `conclude`."""

    def conclude(self, verdict: Verdict) -> None:
        """Adopt a verdict and end all calls by it."""

    def judge(self, reports: Mapping[int, Report], absent: Mapping[int, Absence]) -> Verdict:
        """Decide, as the coordinator.

        Args:
            reports: by rank.
            absent: ranks without a report, and why.
        """
