"""Whom the control plane speaks for: what a rank has to offer to be coordinated."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Report = dict[str, Any]
"""What one rank saw; may carry `window_s`, the longest wait for others that it can bear."""
Verdict = dict[str, Any]
Lost = tuple[int, bool, int]
"""A rank, whether it left with a goodbye, and its last collective then."""


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

    def judge(self, reports: Mapping[int, Report], absent: Mapping[int, str]) -> Verdict:
        """Decide, as the coordinator.

        Args:
            reports: by rank.
            absent: ranks without a report, and why: "dead", "left", or "silent for 1.2 s".
        """
