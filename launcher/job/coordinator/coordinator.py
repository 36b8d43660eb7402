"""The state of a job, without I/O: it starts, stops and restarts all ranks together.

    GATHERING   until every agent has joined
    CHECKING    until preflight has checked all hosts, if there are several
    RUNNING     until all ranks have ended, too few are left (JobSettings.min_ranks) after failures
                or lost agents, or a user stopped the job
    STOPPING    until no rank runs; then all start again, or the job ends
    ENDED

An agent's index is its place among all agents, and gives the order of their ranks. Messages to
agents: `ask` of preflight, `start` Attempt, `dump` attempt and rank, `stop`, `end` exit code and a
line. Messages from agents: see `receive`.
"""

import math
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from hccl_py.launcher.exit_codes import CHECK_FAILED, LOST_NODE, MISSING_NODE, USAGE
from hccl_py.launcher.failure import RankFailure, how_ended
from hccl_py.launcher.job.coordinator.agents import Agents, AgentState
from hccl_py.launcher.job.coordinator.ending import Ending, outcome
from hccl_py.launcher.job.layout import Attempt, Hello, JobSettings
from hccl_py.launcher.number_ranges import name_ranks
from hccl_py.launcher.own_lines import WaitingLines
from hccl_py.launcher.progress.job_progress import JobProgress, Outlets, sample_s

if TYPE_CHECKING:
    from hccl_py.launcher.preflight.check import Checking

# Ranks that lose a peer raise a moment later and name the call, which belongs in the report.
_SETTLE_S = 0.3
_STOP_EXTRA_S = 5.0


class Phase(Enum):
    """See the top of this file."""

    GATHERING = auto()
    CHECKING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ENDED = auto()


class JobCoordinator:
    """One job. All times are by one clock of the caller.

    Attributes:
        phase: its current phase.
        agents: the agents that have joined.
        exit_code: the job's; None until it has ended.
        first_failure: the failure that ended it.
    """

    def __init__(
        self,
        settings: JobSettings,
        now_s: float,
        send: Callable[[int, str, Any], None],
        say: Callable[[str], None],
        show: Callable[[str], None] | None = None,
    ) -> None:
        """Begin to wait for agents.

        Args:
            settings: the job's settings.
            now_s: time by the caller's clock.
            send: takes an agent, a kind and a body.
            say: takes a line.
            show: takes a status line, which replaces the previous one; None: no terminal.
        """
        self.settings = settings
        self.phase = Phase.GATHERING
        self.exit_code: int | None = None
        self.first_failure: RankFailure | None = None
        self._send, self._say, self._show = send, say, show
        self.agents = Agents(settings.hosts)
        self._until_s = now_s + settings.connect_timeout_s
        self._lines = WaitingLines(now_s)
        self._attempt: Attempt | None = None
        self._ending = Ending()
        self._checking: Checking | None = None
        self._progress: JobProgress | None = None

    def why_not(self, index: int) -> str:
        """Return why no agent can join with this index, in words; empty: one can."""
        late = "" if self.phase is Phase.GATHERING else "the job has begun without it"
        return self.agents.why_not(index) or late

    def join(self, index: int, hello: Hello, now_s: float) -> None:
        """Add an agent, if it can join."""
        if self.why_not(index):
            return
        self.agents[index] = AgentState(hello, hello.port)
        if not self.agents.num_missing:
            self._check(now_s)

    def lose(self, index: int, why: str, now_s: float) -> None:
        """Record the loss of an agent. Its ranks may still run; the coordinator cannot know."""
        if index not in self.agents or self.phase is Phase.ENDED:
            return
        if self.phase is Phase.GATHERING:
            self._say(f"hccl-launch: {self.agents.name(index)} left again: {why}")
            del self.agents[index]
            return
        if self.phase is Phase.CHECKING:
            self._end(LOST_NODE, f"hccl-launch: error: {self.agents.name(index)} was lost: {why}")
            return
        self.agents[index].is_running = False
        if not self._ending.lost:
            self._ending.had_failed = self.phase is Phase.STOPPING
        self._ending.lost.setdefault(index, why)
        name = self.agents.name_with_ranks(index)
        self._note_failed(self.agents.ranks()[index], f"{name} was lost: {why}", now_s)
        self._go_on(now_s)

    def receive(self, index: int, kind: str, body: Any, now_s: float) -> None:
        """Handle a message of an agent.

        failed  attempt, rank, exit code   of one of its ranks
        ended   attempt, how each rank ended, port   none of its ranks runs; times are relative to
                now
        progress  attempt, its ranks that run   from time to time
        stack   attempt, rank, text     as `dump` asked
        answer  number, answer      to a question of preflight
        stop    why, exit code      the user stopped the job there, or it cannot continue
        """
        if index not in self.agents or self.phase is Phase.ENDED:
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
            self._note_failed([body[1]], how_ended(*body[1:]), now_s)
        elif kind == "ended":
            agent = self.agents[index]
            ends = (each._replace(at_s=now_s + each.at_s) for each in body[1])
            agent.is_running, agent.ends, agent.port = False, tuple(ends), body[2]
            if self._progress is not None:
                self._progress.end(index)
            # A rank may have recorded an exception and ended with exit code 0.
            failed = [one.rank for one in agent.ends if one.exit_code]
            what = f"{self.agents.name(index)}: {name_ranks(failed)} recorded an exception"
            self._note_failed(failed, what, now_s)
            self._go_on(now_s)

    def stop(self, why: str, exit_code: int, now_s: float) -> None:
        """Stop the job, for a user or because it cannot continue."""
        if self._ending.by_user is None and not self._ending.lost:
            self._ending.had_failed = self.phase is Phase.STOPPING
        self._ending.by_user = self._ending.by_user or (why, exit_code)
        if self.phase in (Phase.GATHERING, Phase.CHECKING):
            self._conclude()
        elif self.phase is not Phase.ENDED:
            self._begin_to_stop(now_s, at_once=True)

    def next_s(self) -> float:
        """Return when to call `tick` at the latest."""
        if self.phase is Phase.GATHERING:
            return min(self._lines.next_s, self._until_s)
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
                self._send_stop(now_s)
            if now_s >= self._ending.end_s:
                for index, agent in self.agents.items():
                    if agent.is_running:
                        self.lose(index, "its ranks did not end in time", now_s)

    # Gathering.

    def _wait(self, now_s: float) -> None:
        missing, address = self.agents.names_missing(), self.settings.address
        if now_s >= self._until_s:
            self._end(
                MISSING_NODE,
                f"hccl-launch: error: {missing} did not connect within "
                f"{self.settings.connect_timeout_s:.0f} s (--connect-timeout). Was hccl-launch "
                f"started there? Can it reach {address} (name, route, firewall)? Is its node "
                "number right, and HCCL_SECRET the same?",
            )
        elif self._lines.is_due(now_s):
            self._say(
                f"hccl-launch: waiting for {missing}, which should reach {address}, for "
                f"{self._until_s - now_s:.0f} s more; here: {self.agents.names_here()}"
            )

    # Checking.

    def _check(self, now_s: float) -> None:
        """Start preflight on all hosts before the ranks start."""
        try:
            self.agents.node_sizes()
        except ValueError as error:
            self._end(MISSING_NODE, f"hccl-launch: error: {error}")
            return
        num_ranks, least = sum(self.agents.node_sizes()), self.settings.min_ranks
        if least > num_ranks:
            what = f"--min-ranks: expected 0 to {num_ranks}, the ranks of the job, got {least}"
            self._end(USAGE, f"hccl-launch: error: {what}")
            return
        hosts = {hello.host for hello in self.agents.hellos()}
        # Agents on one host, such as a scheduler's processes, have no network to check.
        if not self.settings.only_checks and len(hosts) < max(2, len(self.agents)):
            self._start(0)
            return
        from hccl_py.launcher.preflight.check import Checking, Job

        self.phase = Phase.CHECKING
        address, port = self._store()
        called, aliases = self.settings.hosts, self.settings.aliases
        named = zip(called, self.agents.hellos(), strict=True)
        job = Job(
            names=tuple(name or hello.host for name, hello in named),
            node_sizes=tuple(map(len, self.agents.ranks().values())),
            resolved_names=tuple(name for name in called if name and name not in aliases),
            master_addr=address,
            master_port=port,
            full=self.settings.only_checks,
        )
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
        first = self.agents[0]
        return (
            self.settings.master_addr or first.hello.address,
            self.settings.master_port or first.port,
        )

    def _start(self, number: int) -> None:
        sizes = self.agents.node_sizes()
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
            sample_s=sample_s(self.settings.stall_s, self._show is not None),
        )
        outlets = Outlets(
            self._say, self._show, lambda index, rank: self._send(index, "dump", [number, rank])
        )
        self._progress = JobProgress(
            outlets, self.settings.stall_s, attempt.sample_s, range(attempt.world_size)
        )
        self._ending = Ending()
        self.phase = Phase.RUNNING
        for index, ranks in self.agents.ranks().items():
            agent = self.agents[index]
            agent.is_running, agent.ends = True, ()
            slots = agent.hello.slots
            self._send(index, "start", attempt._replace(first_rank=ranks.start, slots=slots))

    def _note_failed(self, ranks: Iterable[int], what: str, now_s: float) -> None:
        """Stop all ranks if too few are left, else log that the others continue."""
        new = set(ranks) - self._ending.failed
        if not new or self.phase is not Phase.RUNNING or self._attempt is None:
            return
        self._ending.failed |= new
        world_size, least = self._attempt.world_size, self.settings.min_ranks
        num_left = world_size - len(self._ending.failed)
        if num_left < (least or world_size):
            self._begin_to_stop(now_s)
            return
        if self._progress is not None:
            self._progress.leave_out(new)
        left = f"{num_left} of {world_size} ranks continue (--min-ranks {least})"
        self._say(f"hccl-launch: {what}; {left}")

    def _begin_to_stop(self, now_s: float, at_once: bool = False) -> None:
        if self.phase is Phase.RUNNING:
            self.phase = Phase.STOPPING
            self._ending.was_stopped = True
            self._ending.stop_at_s = now_s + _SETTLE_S
        if at_once and self._ending.stop_at_s != math.inf:
            self._send_stop(now_s)

    def _send_stop(self, now_s: float) -> None:
        self._ending.stop_at_s = math.inf
        self._ending.end_s = now_s + self.settings.stop_s + _STOP_EXTRA_S
        for index, agent in self.agents.items():
            if agent.is_running:
                self._send(index, "stop", None)

    def _go_on(self, now_s: float) -> None:
        if not any(agent.is_running for agent in self.agents.values()):
            self._conclude()

    def _conclude(self) -> None:
        """Restart all ranks or end the job, once no rank runs."""
        exit_code, text, line, self.first_failure = outcome(
            self._ending, self.agents, self._attempt
        )
        if exit_code is not None:
            self._end(exit_code, text, line)
        elif self._attempt is not None:
            self._say(text)
            self._start(self._attempt.number + 1)

    def _end(self, exit_code: int, text: str, line: str = "") -> None:
        """End the job: print the text here, and the line, or else the text, on other hosts."""
        self.phase, self.exit_code = Phase.ENDED, exit_code
        if self._progress is not None:
            self._progress.close()
        if text:
            self._say(text)
        for index in self.agents:
            self._send(index, "end", [exit_code, line or text])
