"""The preflight of a job, carried by the messages between coordinator and agents."""

import os
from collections.abc import Callable, Generator, Mapping
from typing import Any

from hccl_py.launcher.preflight.check import Answers, Ask, Job, Report, check
from hccl_py.launcher.preflight.node.facts import Settings


class Checking:
    """The coordinator's side, without I/O.

    Attributes:
        report: None until the check has ended.
    """

    def __init__(self, job: Job, ask: Callable[[int, Any], None], now_s: float) -> None:
        """Ask the first questions; `ask` sends one to a node."""
        self.report: Report | None = None
        self._send = ask
        self._steps: Generator[Ask, Answers, Report] = check(job)
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._ask(next(self._steps), now_s)

    def answer(self, node: int, number: int, answer: Any, now_s: float) -> None:
        """Take an answer of a node; one that comes too late is dropped."""
        if number == self._number and node in self._waiting:
            self._waiting.remove(node)
            self._answers[node] = answer
            self.tick(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        return self._until_s

    def tick(self, now_s: float) -> None:
        """Go on if all answers have come, or their time is over."""
        while self.report is None and (not self._waiting or now_s >= self._until_s):
            try:
                asked = self._steps.send(self._answers)
            except StopIteration as ended:
                self.report = ended.value
            else:
                self._ask(asked, now_s)

    def _ask(self, asked: Ask, now_s: float) -> None:
        self._number += 1
        self._answers, self._waiting = {}, set(asked.questions)
        self._until_s = now_s + asked.timeout_s
        for node, question in asked.questions.items():
            self._send(node, [self._number, question])


def settings_of_node(given: Mapping[str, Any], environ: Mapping[str, str]) -> Settings:
    """Return what the responder has to know, from the coordinator and from the agent."""
    return Settings(
        node=given["node"],
        node_sizes=tuple(given["node_sizes"]),
        names=tuple(given["names"]),
        master_addr=given["master_addr"],
        master_port=given["master_port"],
        environ=environ,
        secret=os.fsencode(environ.get("HCCL_SECRET", "")),
    )
