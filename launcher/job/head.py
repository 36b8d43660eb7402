"""The state of a job, without I/O: it starts, stops and restarts all ranks together.

    GATHERING   until every agent has come
    CHECKING    until preflight has looked at all hosts, if there are several
    RUNNING     until all ranks have ended, one failed, an agent was lost, or a user stopped the job
    STOPPING    until no rank runs; then all start again, or the job ends
    ENDED

An agent has an index, which stands for its place among all: ranks follow one another in that order.
Messages to agents: `check` and `ask` of preflight, `start` Attempt, `dump` attempt and rank,
`stop`, `end` exit code and a line. Messages from agents: see `receive`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from hccl_py.launcher.exit_codes import CHECK_FAILED, LOST_NODE, MISSING_NODE
from hccl_py.launcher.failure import Failure, first_failure, ranges, render, title
from hccl_py.launcher.job.layout import Attempt, Hello, node_sizes
from hccl_py.launcher.progress.job_progress import JobProgress, Outlets, look_s

if TYPE_CHECKING:
    from hccl_py.launcher.job.checking import Checking

_FIRST_LINE_S, _NEXT_LINE_S = 5.0, 60.0
# Ranks that lose a peer raise a moment later, and say in what call: that belongs to the report.
_SETTLE_S = 0.3
_STOP_EXTRA_S = 5.0


@dataclass(frozen=True)
class HeadSettings:
    """What the head has to know of a job before any agent comes.

    Attributes:
        hosts: of the agents, as many as there are; empty where a host is not known yet.
        address: where agents of other hosts connect, for messages.
        connect_timeout_s: how long to wait for all of them.
        stop_s: between SIGTERM and SIGKILL of a rank.
        job_id: what ranks see; restarts keep it.
        master_addr, master_port: rank 0's store; empty and 0: what the first agent says.
        stall_s: a rank without progress is named after so long; 0: none is.
        only_checks: the job is preflight, in full, and no rank is started.
    """

    hosts: tuple[str, ...]
    address: str
    connect_timeout_s: float
    stop_s: float
    job_id: str
    max_restarts: int = 0
    master_addr: str = ""
    master_port: int = 0
    only_checks: bool = False
    stall_s: float = 0.0


class Phase(Enum):
    """See the head of this file."""

    GATHERING = auto()
    CHECKING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ENDED = auto()


@dataclass
class _Agent:
    hello: Hello
    running: bool = False
    failures: tuple[Failure, ...] = ()
    port: int = 0


@dataclass
class _Ending:
    """Why the ranks are being stopped, and until when they may run on."""

    stop_at_s: float  # then they are told to stop
    end_s: float = math.inf  # then their agents count as lost
    by_user: tuple[str, int] | None = None  # why, and the exit code
    lost: dict[int, str] = field(default_factory=dict)


class Head:
    """One job. All times are those of one clock of the caller.

    Attributes:
        phase: what it is doing.
        exit_code: the job's; None until it has ended.
    """

    def __init__(
        self,
        settings: HeadSettings,
        now_s: float,
        send: Callable[[int, str, Any], None],
        say: Callable[[str], None],
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Begin to wait for agents.

        Args:
            settings: of the job.
            now_s: by the clock of the caller.
            send: takes an agent, a kind and a body.
            say: takes a line.
            show: takes a status line, in place of the one before; None: there is no terminal.
        """
        self.settings = settings
        self.phase = Phase.GATHERING
        self.exit_code: int | None = None
        self._send, self._say, self._show = send, say, show
        self._agents: dict[int, _Agent] = {}
        self._began_s = now_s
        self._line_s = now_s + _FIRST_LINE_S
        self._attempt: Attempt | None = None
        self._ending = _Ending(math.inf)
        self._checking: Checking | None = None
        self._progress: JobProgress | None = None

    @property
    def missing(self) -> list[int]:
        """The agents that have not come."""
        return [index for index in range(len(self.settings.hosts)) if index not in self._agents]

    @property
    def world_size(self) -> int | None:
        """Number of ranks; None: not all agents have come."""
        return self._attempt.world_size if self._attempt else None

    def join(self, index: int, hello: Hello, now_s: float) -> str:
        """Take an agent in; return why it cannot be taken, in words, or nothing."""
        if index not in range(len(self.settings.hosts)):
            return f"this job has {len(self.settings.hosts)} nodes; there is no node {index}"
        if index in self._agents:
            other = self._agents[index].hello
            return (
                f"{self._name(index)} is there already, as process {other.pid}: "
                "give each node a number of its own"
            )
        if self.phase is not Phase.GATHERING:
            return "the job has begun without it"
        self._agents[index] = _Agent(hello, port=hello.port)
        if len(self._agents) == len(self.settings.hosts):
            self._check(now_s)
        return ""

    def lose(self, index: int, why: str, now_s: float) -> None:
        """Note that an agent is gone; its ranks are not, perhaps, but nobody can tell."""
        if index not in self._agents or self.phase is Phase.ENDED:
            return
        if self.phase is Phase.GATHERING:
            self._say(f"hccl-launch: {self._name(index)} left again: {why}")
            del self._agents[index]
            return
        if self.phase is Phase.CHECKING:
            self._end(LOST_NODE, f"hccl-launch: error: {self._name(index)} was lost: {why}")
            return
        self._agents[index].running = False
        self._ending.lost.setdefault(index, why)
        self._begin_to_stop(now_s)
        self._go_on(now_s)

    def receive(self, index: int, kind: str, body: Any, now_s: float) -> None:
        """Take a message of an agent.

        failed  attempt             one of its ranks failed
        ended   attempt, failures, port   none of its ranks runs any more; the time of a failure
                is relative to now
        progress  attempt, its ranks that run   from time to time
        stack   attempt, rank, text     as `dump` asked
        answer  number, answer      to a question of preflight
        stop    why, exit code      the user stopped the job there, or it cannot go on
        """
        if index not in self._agents or self.phase is Phase.ENDED:
            return
        if kind == "stop":
            why, exit_code = body
            self.stop(str(why), int(exit_code), now_s)
            return
        number = body[0]
        if kind == "answer" and self._checking is not None:
            self._checking.answer(index, number, body[1], now_s)
            self._conclude_check()
            return
        if self._attempt is None or number != self._attempt.number:
            return
        if kind == "progress" and self._progress is not None:
            if self.phase is Phase.RUNNING:
                self._progress.take(index, body[1], now_s)
        elif kind == "stack" and self._progress is not None:
            self._progress.take_stack(*body[1:])
        elif kind == "failed":
            self._begin_to_stop(now_s)
        elif kind == "ended":
            agent = self._agents[index]
            failures = (each._replace(at_s=now_s + each.at_s) for each in body[1])
            agent.running, agent.failures, agent.port = False, tuple(failures), body[2]
            if self._progress is not None:
                self._progress.end(index)
            if agent.failures:
                self._begin_to_stop(now_s)
            self._go_on(now_s)

    def stop(self, why: str, exit_code: int, now_s: float) -> None:
        """Stop the job, because a user wants so or it cannot go on."""
        self._ending.by_user = self._ending.by_user or (why, exit_code)
        if self.phase in (Phase.GATHERING, Phase.CHECKING):
            self._conclude()
        elif self.phase is not Phase.ENDED:
            self._begin_to_stop(now_s, at_once=True)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        if self.phase is Phase.GATHERING:
            return min(self._line_s, self._began_s + self.settings.connect_timeout_s)
        if self.phase is Phase.CHECKING and self._checking is not None:
            return self._checking.next_s()
        if self.phase is Phase.STOPPING:
            return min(self._ending.stop_at_s, self._ending.end_s)
        return math.inf

    def tick(self, now_s: float) -> None:
        """Do what is due."""
        if self.phase is Phase.GATHERING:
            self._wait(now_s)
        elif self.phase is Phase.CHECKING and self._checking is not None:
            self._checking.tick(now_s)
            self._conclude_check()
        elif self.phase is Phase.STOPPING:
            if now_s >= self._ending.stop_at_s:
                self._tell_to_stop(now_s)
            if now_s >= self._ending.end_s:
                for index, agent in self._agents.items():
                    if agent.running:
                        self.lose(index, "its ranks did not end in time", now_s)

    # Gathering.

    def _wait(self, now_s: float) -> None:
        until_s = self._began_s + self.settings.connect_timeout_s
        if now_s >= until_s:
            self._end(MISSING_NODE, self._who_did_not_come())
        elif now_s >= self._line_s:
            self._line_s = now_s + _NEXT_LINE_S
            came = ", ".join(map(self._name, sorted(self._agents)))
            self._say(
                f"hccl-launch: waiting for {self._missing_names()}, which should reach "
                f"{self.settings.address}, for {until_s - now_s:.0f} s more; "
                f"here: {came or 'none'}"
            )

    def _name(self, index: int) -> str:
        agent = self._agents.get(index)
        host = agent.hello.host if agent else self.settings.hosts[index]
        return f"node {index} ({host})" if host else f"node {index}"

    def _missing_names(self) -> str:
        names = [self._name(index) for index in self.missing]
        return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    def _who_did_not_come(self) -> str:
        return (
            f"hccl-launch: error: {self._missing_names()} did not come within "
            f"{self.settings.connect_timeout_s:.0f} s (--connect-timeout). Was hccl-launch started "
            f"there? Can it reach {self.settings.address} (name, route, firewall)? Is its node "
            "number right, and HCCL_SECRET the same?"
        )

    # Checking.

    def _check(self, now_s: float) -> None:
        """Have all hosts look at each other before the ranks start."""
        hellos = [self._agents[index].hello for index in sorted(self._agents)]
        try:
            node_sizes([slot for hello in hellos for slot in hello.slots])
        except ValueError as error:
            self._end(MISSING_NODE, f"hccl-launch: error: {error}")
            return
        hosts = tuple(hello.host for hello in hellos)
        # Agents of one host, as many a scheduler starts, have nothing to find out.
        if not self.settings.only_checks and len(set(hosts)) < max(2, len(hosts)):
            self._start(0)
            return
        from hccl_py.launcher.job.checking import Checking
        from hccl_py.launcher.preflight.check import Job

        self.phase = Phase.CHECKING
        sizes = tuple(len(hello.slots) for hello in hellos)
        address, port = self._store()
        told = {
            "node_sizes": sizes,
            "names": self.settings.hosts,  # what they are called here: those have to resolve
            "master_addr": address,
            "master_port": port,
        }
        for index in range(len(hosts)):
            self._send(index, "check", {**told, "node": index})
        job = Job(self.settings.hosts, sizes, has_master_port=True, full=self.settings.only_checks)
        self._checking = Checking(job, lambda node, body: self._send(node, "ask", body), now_s)

    def _conclude_check(self) -> None:
        report = self._checking.report if self._checking else None
        if report is None:
            return
        self._checking = None
        text = f"hccl-launch: the hosts were checked\n{report}"
        if self.settings.only_checks:
            self._end(CHECK_FAILED if report.has_errors else 0, text)
        elif report.has_errors:
            self._end(CHECK_FAILED, text, "hccl-launch: error: preflight found errors")
        else:
            if report.findings:
                self._say(text)
            self._start(0)

    # Running and stopping.

    def _store(self) -> tuple[str, int]:
        first = self._agents[0]
        return (
            self.settings.master_addr or first.hello.address,
            self.settings.master_port or first.port,
        )

    def _start(self, number: int) -> None:
        agents = [self._agents[index] for index in sorted(self._agents)]
        sizes = node_sizes([slot for agent in agents for slot in agent.hello.slots])
        address, port = self._store()
        self._attempt = attempt = Attempt(
            number=number,
            first_rank=0,
            slots=(),
            world_size=sum(sizes),
            node_sizes=sizes,
            master_addr=address,
            master_port=port,
            job_id=self.settings.job_id,
            max_restarts=self.settings.max_restarts,
            look_s=look_s(self.settings.stall_s, self._show is not None),
        )
        outlets = Outlets(
            self._say, self._show, lambda index, rank: self._send(index, "dump", [number, rank])
        )
        self._progress = JobProgress(
            outlets, self.settings.stall_s, attempt.look_s, attempt.world_size
        )
        self._ending = _Ending(math.inf)
        self.phase = Phase.RUNNING
        first_rank = 0
        for index in sorted(self._agents):
            agent = self._agents[index]
            agent.running, agent.failures = True, ()
            slots = agent.hello.slots
            self._send(index, "start", attempt._replace(first_rank=first_rank, slots=slots))
            first_rank += len(slots)

    def _begin_to_stop(self, now_s: float, at_once: bool = False) -> None:
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._ending.stop_at_s = now_s + _SETTLE_S
        if at_once and self._ending.stop_at_s != math.inf:
            self._tell_to_stop(now_s)

    def _tell_to_stop(self, now_s: float) -> None:
        self._ending.stop_at_s = math.inf
        self._ending.end_s = now_s + self.settings.stop_s + _STOP_EXTRA_S
        for index, agent in self._agents.items():
            if agent.running:
                self._send(index, "stop", None)

    def _go_on(self, now_s: float) -> None:
        if not any(agent.running for agent in self._agents.values()):
            self._conclude()

    def _conclude(self) -> None:
        """No rank runs: start all again, or end the job."""
        failures = [one for agent in self._agents.values() for one in agent.failures]
        if len(self._agents) == 1:
            failures = [one._replace(host="") for one in failures]  # the only one there is
        ending, attempt = self._ending, self._attempt
        if ending.by_user:
            why, exit_code = ending.by_user
            self._end(exit_code, f"hccl-launch: {why}; all ranks were ended")
        elif ending.lost:
            # Ranks of other nodes raise because of it, or were stopped.
            told = [one for one in failures if not one.was_stopped]
            lines = [render(told, self.world_size)] if told else []
            lines += [
                f"hccl-launch: error: {self._lost(index)}: {why}"
                for index, why in ending.lost.items()
            ]
            self._end(LOST_NODE, "\n".join(lines), lines[-1])
        elif not failures:
            self._end(0, "")
        else:
            assert attempt is not None
            report = render(failures, attempt.world_size)
            if attempt.number == attempt.max_restarts:
                first = first_failure(failures)
                self._end(first.shell_code, report, title(first, attempt.world_size))
            else:
                again = f"restart {attempt.number + 1} of {attempt.max_restarts}"
                self._say(f"{report}\nhccl-launch: {again}: all ranks start again")
                self._start(attempt.number + 1)

    def _lost(self, index: int) -> str:
        hello = self._agents[index].hello
        before = sum(
            len(agent.hello.slots) for other, agent in self._agents.items() if other < index
        )
        ranks = ranges(range(before, before + len(hello.slots)))
        return f"{self._name(index)} with ranks {ranks} was lost"

    def _end(self, exit_code: int, text: str, line: str = "") -> None:
        """End the job: say the text here, and the one line, or else the text, on other hosts."""
        self.phase, self.exit_code = Phase.ENDED, exit_code
        if self._progress is not None:
            self._progress.close()
        if text:
            self._say(text)
        for index in self._agents:
            self._send(index, "end", [exit_code, line or text])
