"""The process with the coordinator, with agents in this process, on other hosts, or both."""

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hccl_py.launcher.exit_codes import AGENT_KILLED
from hccl_py.launcher.job.agent import Agent, watch_signals
from hccl_py.launcher.job.channel import COORDINATOR_RETURN_S, PROTOCOL, Session, pack
from hccl_py.launcher.job.coordinator.coordinator import JobCoordinator, Phase
from hccl_py.launcher.job.coordinator.server import CoordinatorServer
from hccl_py.launcher.job.layout import Hello, JobSettings, RankProgram
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.rank_input import UserInput
from hccl_py.launcher.job.streams import PRINT_S, JobOutput

_CLOSE_S = 3.0
StartOthers = Callable[[JobLoop, "JobServer"], AbstractContextManager[object]]


class JobServer:
    """A coordinator and its connections to agents; a service of the loop, which ends with the job.

    Attributes:
        has_started_agents: whether it forwards signals to agents of other processes.
        failure_file: gets the failure that ends the job, as JSON, instead of a printed report.
    """

    failure_file: ClassVar[Path | None] = None

    def __init__(self, loop: JobLoop, settings: JobSettings) -> None:
        """Create it without agents."""
        self.streams = JobOutput(loop)
        streams = self.streams
        show = streams.show if streams.can_show else None
        self.coordinator = JobCoordinator(
            settings, time.monotonic(), self._to_agent, self._say, show
        )
        self._loop = loop
        self._local: dict[int, Agent] = {}
        self._routes: dict[int, int] = {}
        self._indices: dict[int, int] = {}
        self._sessions: dict[int, Session] = {}
        self._return_s: dict[int, float] = {}  # time limit for an agent to reconnect
        self._server: CoordinatorServer | None = None
        self._close_by_s = self._give_up_s = float("inf")
        self._last_lines = ""
        self._input = UserInput(loop, lambda text: self._to_agent(0, "stdin", text))
        self.has_started_agents = False
        loop.add(self)

    def listen(self, bound: socket.socket, secret: str) -> None:
        """Serve agents of other processes at a bound socket."""
        self._server = CoordinatorServer(
            self._loop,
            secret,
            self._on_message,
            self._on_lost,
            lambda: self.coordinator.agents.num_missing + len(self._return_s),
        )
        self._server.listen(bound)
        self._loop.remove(self)
        for service in (self._server, self):  # in this order: a received message may end the job
            self._loop.add(service)

    def add_agent(self, index: int, program: RankProgram, address: str, port: int) -> None:
        """Add an agent in this process; its host has `address` and a free `port`."""
        send = partial(self._from_local, index)
        agent = self._local[index] = Agent(self._loop, program, send, self.streams)
        self._loop.add(agent)
        hello = Hello(socket.gethostname(), os.getpid(), program.slots, address, port)
        self._loop.post(lambda: self.coordinator.join(index, hello, time.monotonic()))

    def stop(self, why: str, exit_code: int) -> None:
        """Stop the job for a signal of this process; after the job's end, stop printing."""
        now_s = time.monotonic()
        if self.coordinator.phase is Phase.ENDED:
            self.coordinator.exit_code = self.coordinator.exit_code or exit_code
            self._give_up_s = now_s
            self._last_lines = f"{self._last_lines}\nhccl-launch: {why}".strip()
        else:
            self._give_up_s = now_s + self.coordinator.settings.stop_s + PRINT_S
            self.coordinator.stop(why, exit_code, now_s)

    def warn(self, number: int) -> None:
        """Forward a signal to the ranks here and on hosts whose agents this process started."""
        for agent in self._local.values():
            agent.warn_ranks(number)
        if self.has_started_agents:
            for index in self._sessions:
                self._to_agent(index, "warn", number)

    def close(self) -> None:
        """Close the connections after sent messages have left."""
        if self._server is not None:
            self._server.close()
        self.streams.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        next_s = min(self.coordinator.next_s(), self._give_up_s, *self._return_s.values())
        return next_s if self._is_closing_over(time.monotonic()) else min(next_s, self._close_by_s)

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        for index in [each for each, until_s in self._return_s.items() if now_s >= until_s]:
            self._lose(index, now_s)
        self.coordinator.tick(now_s)
        if self.streams.is_lost and self._give_up_s == float("inf"):
            self.stop(f"it cannot print any more ({self.streams.why_lost})", 128 + signal.SIGPIPE)
        if self.coordinator.phase is not Phase.ENDED:
            return
        if now_s >= self._give_up_s:
            self.streams.give_up()
        if self._last_lines and not self.streams.has_readers:
            lines, self._last_lines = self._last_lines, ""
            self.streams.say(lines)
        # The agents close their connections when they end.
        self._close_by_s = min(self._close_by_s, now_s + _CLOSE_S)
        here = any(agent.exit_code is None for agent in self._local.values())
        if not here and self._is_closing_over(now_s) and self.streams.is_drained:
            self._loop.stop()

    def _is_closing_over(self, now_s: float) -> bool:
        return not self._routes or now_s >= self._close_by_s

    def _say(self, text: str) -> None:
        first = self.coordinator.first_failure
        if self.failure_file is not None and first is not None:
            self.failure_file.write_text(json.dumps(first._asdict()))
            return
        # The report is printed last, and agents on other hosts may still send lines.
        if self.coordinator.phase is Phase.ENDED and self.streams.has_readers:
            self._last_lines = text
        else:
            self.streams.say(text)

    def _from_local(self, index: int, kind: str, body: Any) -> None:
        self._loop.post(lambda: self.coordinator.receive(index, kind, body, time.monotonic()))

    def _to_agent(self, index: int, kind: str, body: Any) -> None:
        if index in self._local:
            agent = self._local[index]
            self._loop.post(lambda: agent.receive(kind, body))
        elif index in self._sessions and self._server is not None:
            message = self._sessions[index].pack(kind, body)
            if index in self._routes:
                self._server.send(self._routes[index], message)

    def _on_message(self, route: int, kind: str, body: Any, number: int, num_received: int) -> None:
        assert self._server is not None
        if kind == "hello":
            problem = "" if self._resume(route, body) else self._take(route, body)
            if problem:
                self._server.send(route, pack("refused", problem))
            return
        index = self._indices.get(route)
        if index is None or not self._sessions[index].take(number, num_received):
            return
        if index == 0 and kind == "stdin":
            self._input.want()
        else:
            self.coordinator.receive(index, kind, body, time.monotonic())

    def _resume(self, route: int, body: Any) -> bool:
        """Resume an agent whose connection was replaced; return whether it is one."""
        assert self._server is not None
        for index, session in self._sessions.items():
            if session.name == body["session"]:
                self._indices.pop(self._routes.get(index, 0), None)
                self._routes[index], self._indices[route] = route, index
                self._return_s.pop(index, None)
                session.take(0, body["num_received"])
                for message in session.again():
                    self._server.send(route, message)
                return True
        return False

    def _take(self, route: int, body: Any) -> str:
        mine = len(self.coordinator.settings.hosts)
        if body["protocol"] != PROTOCOL:
            return "it runs another version of hccl-py"
        if body["num_agents"] != mine:
            return f"it expects {body['num_agents']} nodes, node 0 expects {mine}"
        index, hello = body["index"], body["hello"]
        if index is None:  # nodes are numbered in order of arrival
            index = next(iter(self.coordinator.agents.missing), mine)
            slots = tuple(slot._replace(node=index) for slot in hello.slots)
            hello = hello._replace(slots=slots)
        if problem := self.coordinator.why_not(index):
            return problem
        # Needed first: the coordinator may answer at once, with the start of all ranks.
        self._routes[index], self._indices[route] = route, index
        self._sessions[index] = Session(body["session"])
        self.coordinator.join(index, hello, time.monotonic())
        return ""

    def _on_lost(self, route: int) -> None:
        """Wait a moment: the agent may be alive and redial."""
        index, now_s = self._indices.pop(route, None), time.monotonic()
        if index is None:
            return  # it already has another route
        del self._routes[index]
        if self.coordinator.phase in (Phase.GATHERING, Phase.ENDED):
            self._lose(index, now_s)
        else:
            self._return_s[index] = now_s + COORDINATOR_RETURN_S

    def _lose(self, index: int, now_s: float) -> None:
        self._return_s.pop(index, None)
        del self._sessions[index]
        why = "its hccl-launch ended, or cannot be reached any more"
        self.coordinator.lose(index, why, now_s)


def run(
    settings: JobSettings,
    agents: Sequence[tuple[int, RankProgram, str, int]],
    listener: tuple[socket.socket, str] | None = None,
    start_others: StartOthers | None = None,
) -> int:
    """Run a job to its end.

    Args:
        settings: of the job.
        agents: agents in this process, as in `JobServer.add_agent`.
        listener: a bound socket for other agents, and the secret.
        start_others: starts agents on other hosts, and returns a context that ends them.

    Returns:
        The exit code of the job.
    """
    loop = JobLoop()
    server = JobServer(loop, settings)
    watch_signals(loop, server.stop, server.warn)
    if listener is not None:
        server.listen(*listener)
    for agent in agents:
        server.add_agent(*agent)
    with start_others(loop, server) if start_others else nullcontext():
        loop.run()
        server.close()
    code = server.coordinator.exit_code
    return AGENT_KILLED if code is None else code
