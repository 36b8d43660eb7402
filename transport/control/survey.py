"""A survey: one rank asks all ranks for their reports, and no rank decides anything."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hccl_py.transport.control.coordinator import Send
from hccl_py.transport.control.reporter import Report, Reporter

_MAX_OPEN = 16


@dataclass(frozen=True)
class Survey:
    """Reports as they arrive.

    Attributes:
        reports: by rank; the control thread adds to them.
        complete: set when all ranks have answered.
    """

    reports: dict[int, Report] = field(default_factory=dict)
    complete: threading.Event = field(default_factory=threading.Event)


class Surveys:
    """Both sides of the surveys at one rank. For the control thread."""

    def __init__(self, reporter: Reporter, world_size: int, send: Send) -> None:
        """Answer with the reports of `reporter`."""
        self._reporter = reporter
        self._world_size = world_size
        self._send = send
        self._open: dict[int, Survey] = {}
        self._number = 0

    def handlers(self) -> Mapping[str, Callable[[int, Any, float], None]]:
        """Return what takes which kind of message."""
        return {"survey": self._on_question, "surveyed": self._on_answer}

    def begin(self, survey: Survey) -> None:
        """Ask all ranks, this one included."""
        if len(self._open) == _MAX_OPEN:  # the oldest, to which some rank never answered
            del self._open[min(self._open)]
        self._number += 1
        self._open[self._number] = survey
        for rank in range(self._world_size):
            self._send(rank, "survey", self._number)

    def _on_question(self, sender: int, body: Any, now_s: float) -> None:
        self._send(sender, "surveyed", [body, self._reporter.report()])

    def _on_answer(self, sender: int, body: Any, now_s: float) -> None:
        number, report = body
        survey = self._open.get(number)
        if survey is None:
            return
        survey.reports[sender] = report
        if len(survey.reports) == self._world_size:
            del self._open[number]
            survey.complete.set()
