"""The coordinator's side of preflight: the questions to the nodes, and the report.

`check` is a generator that yields questions and receives the answers. `Checking` sends both as
messages of a job.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hccl_py.launcher.machine.lookups import MOST_THREADS
from hccl_py.launcher.preflight.evaluation.compare import CHECKS, clock_findings, compare, overview
from hccl_py.launcher.preflight.evaluation.links import link_findings
from hccl_py.launcher.preflight.finding import Finding, Nodes, render
from hccl_py.launcher.preflight.node.facts import RESOLVE_S
from hccl_py.launcher.preflight.node.probe import PROBE_S, Target
from hccl_py.launcher.preflight.node.responder import Introduction

_ANSWER_S = 5.0
_ALL_PAIRS = 8
_PAIR_CHECKS = 4  # clock, master port, data ports, full-size packets


@dataclass(frozen=True)
class Job:
    """The job to check.

    Attributes:
        names: the user's name of each node; "" if there is none. node_sizes: ranks on each node.
        resolved_names: the names that every node must resolve.
        master_addr, master_port: future address of rank 0's store.
        full: check every pair, with tables; else the checks before a start, about a second.
    """

    names: tuple[str, ...]
    node_sizes: tuple[int, ...]
    resolved_names: tuple[str, ...]
    master_addr: str
    master_port: int
    full: bool


@dataclass(frozen=True)
class Ask:
    """Questions by node, and how long to wait for the answers."""

    questions: Mapping[int, dict[str, Any]]
    timeout_s: float


@dataclass(frozen=True)
class CheckReport:
    """The findings; `details` has tables of nodes and RDMA ports, empty without `full`."""

    findings: tuple[Finding, ...]
    names: tuple[str, ...]
    num_checks: int
    details: str

    @property
    def has_errors(self) -> bool:
        """Whether the job would fail."""
        return any(each.severity == "error" for each in self.findings)

    def __str__(self) -> str:
        text = render(self.findings, self.names, self.num_checks)
        return f"{self.details}\n\n{text}" if self.details else text


Answers = Mapping[int, Any]
"""By node; a missing node did not answer in time."""

Steps = Generator[Ask, Answers, Any]


def check(job: Job) -> Generator[Ask, Answers, CheckReport]:
    """Ask all nodes everything and return the report."""
    examine = {"kind": "examine", "names": job.resolved_names, "master_addr": job.master_addr}
    asked = Ask(
        {
            node: {**examine, "listens_at": 0 if node else job.master_port}
            for node in range(len(job.names))
        },
        RESOLVE_S + _ANSWER_S,
    )
    answered: Mapping[int, Introduction] = yield asked
    findings = list(_silent(asked, answered))
    skews_s = yield from _ask_clocks(answered)
    findings += clock_findings(skews_s)
    nodes = Nodes(job.names, job.node_sizes, {node: one["facts"] for node, one in answered.items()})
    findings += compare(nodes)
    findings += _listeners(answered)
    asked = _what_to_reach(job, answered)
    results = yield asked
    findings += _silent(asked, results)
    findings += link_findings(nodes, results)
    details = overview(nodes, skews_s) if job.full else ""
    return CheckReport(tuple(findings), job.names, len(CHECKS) + _PAIR_CHECKS, details)


def _ask_clocks(answered: Iterable[int]) -> Steps:
    """Return each node's clock minus this one's, within half of a round trip."""
    began_s = time.time()
    clocks_s = yield Ask({node: {"kind": "clock"} for node in answered}, _ANSWER_S)
    middle_s = (began_s + time.time()) / 2
    return {node: float(clock_s) - middle_s for node, clock_s in clocks_s.items()}


def _what_to_reach(job: Job, answered: Mapping[int, Introduction]) -> Ask:
    """Have all nodes dial others at the same time."""
    n = len(job.names)
    has_master = 0 in answered and not answered[0]["master_problem"]
    master = Target(
        node=0, path=None, interface="", source="", host=job.master_addr, port=job.master_port
    )
    questions: dict[int, dict[str, Any]] = {}
    most = 0
    for node in answered:
        # In turns, so that not all others dial a node at the same time.
        others = [(node + k) % n for k in range(1, n)] if job.full else neighbours(node, n)
        targets = [
            target
            for other in others
            if other in answered
            for target in _targets(answered[node], answered[other], other)
        ]
        is_known = not isinstance(answered[node]["facts"]["resolved"][job.master_addr], str)
        if has_master and is_known and node != 0:
            targets.append(master)
        questions[node] = {"kind": "reach", "targets": targets}
        most = max(most, len(targets))
    return Ask(questions, (1 + most // MOST_THREADS) * PROBE_S + _ANSWER_S)


def _targets(mine: Introduction, theirs: Introduction, node: int) -> Iterator[Target]:
    """Yield the targets of a node: path by path, from the ranks' addresses."""
    paths = zip(mine["facts"]["paths"], theirs["facts"]["paths"], theirs["ports"], strict=False)
    several = len(mine["facts"]["paths"]) > 1
    for number, ((interface, source), (_, host), port) in enumerate(paths):
        if (":" in source) == (":" in host):
            name = interface if several else ""
            yield Target(
                node=node, path=number, interface=name, source=source, host=host, port=port
            )


def _silent(asked: Ask, answers: Answers) -> Iterator[Finding]:
    for node in asked.questions.keys() - answers.keys():
        kind = asked.questions[node]["kind"]
        what = f"did not answer the question {kind!r} within {asked.timeout_s:g} s"
        yield Finding(
            node, "error", what, "its load (top), hung file systems (df), its agent's log"
        )


def _listeners(answered: Mapping[int, Introduction]) -> Iterator[Finding]:
    for node, one in answered.items():
        if problem := one["listen_problem"]:
            what = f"cannot listen on {problem}"
            remedy = "ss -ltnp shows which process does; or another HCCL_PORT_RANGE"
            yield Finding(node, "error", what, remedy)
        if problem := one["master_problem"]:
            what = f"cannot listen on the master port: {problem}"
            yield Finding(
                node, "error", what, "ss -ltnp shows which process does; or another --master-port"
            )


def neighbours(node: int, n: int) -> list[int]:
    """Return the nodes that a node dials before a start: all, or at distances 1, 2, 4, ...

    A firewall or a bad cable affects a node, so a few others detect it, in both directions. The
    number of connections grows with n log n.
    """
    if n <= _ALL_PAIRS:
        return [other for other in range(n) if other != node]
    steps = [1 << k for k in range(n.bit_length()) if 1 << k < n]
    return sorted({(node + way * step) % n for step in steps for way in (1, -1)} - {node})


class Checking:
    """The preflight of a job, without I/O.

    Attributes:
        report: None until the check has ended.
    """

    def __init__(self, job: Job, ask: Callable[[int, Any], None], now_s: float) -> None:
        """Ask the first questions; `ask` sends one to a node."""
        self.report: CheckReport | None = None
        self._send = ask
        self._steps = check(job)
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._ask(next(self._steps), now_s)

    def answer(self, node: int, number: int, answer: Any, now_s: float) -> None:
        """Accept an answer of a node; a late one is dropped."""
        if number == self._number and node in self._waiting:
            self._waiting.remove(node)
            self._answers[node] = answer
            self.tick(now_s)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        return self._until_s

    def tick(self, now_s: float) -> None:
        """Continue once all answers have arrived, or their time is over."""
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
