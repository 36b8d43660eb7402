"""The processes of a job on this machine: forks an agent per node, watches and ends them all.

Rules that hold here:
- Agents are forked before any thread exists in this process, and sit in sessions of their own: a
  Ctrl-C reaches this process alone, which then stops them in order.
- A pipe that closes shows that its agent ended, for any reason.
- The store through which emulated nodes meet listens on a socket bound before the forks, so no
  other process can take its port in between.
"""

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.launcher.api import LaunchConfig

from hccl_py.launcher import agent
from hccl_py.launcher.agent import Program, Report, Restart
from hccl_py.launcher.exit_status import children
from hccl_py.launcher.failure import first_failure, render

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# Another node's ranks may hold the root cause: so long after one node failed, the rest is stopped.
_OTHER_NODES_S = 1.0
# On top of the time that elastic gives a rank between SIGTERM and SIGKILL.
_AGENT_EXTRA_S = 5.0
# How long a stopped agent without ranks may take to end.
_IDLE_S = 0.5


class LaunchError(Exception):
    """The job could not be started or kept up; the message says why, in one line."""


@dataclass(frozen=True)
class Job:
    """What to run on this machine.

    Attributes:
        program: what each rank runs.
        nodes: agents to start.
        world_size: ranks of the whole job, if known.
        listener: the bound socket at which local nodes meet; None where the user named a place.
    """

    program: Program
    nodes: int
    world_size: int | None
    listener: socket.socket | None


def listen(port: int | None) -> socket.socket:
    """Bind the socket at which the nodes of this machine will meet.

    Raises:
        LaunchError: the port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port or 0))
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        reason = os.strerror(error.errno or 0).lower()
        raise LaunchError(f"cannot listen on 127.0.0.1:{port}: {reason}") from error
    return listener


def run(job: Job) -> int:
    """Run a job to its end and report its failure.

    Returns:
        0, the exit code of the first rank that failed, or 128 + the signal that ended the job.

    Raises:
        LaunchError: an agent could not do its work.
    """
    agents = [_fork(job, node) for node in range(job.nodes)]
    return _Supervisor(job, agents).run()


@dataclass
class _Agent:
    """A forked agent: its process, its pipe and its last messages."""

    pid: int
    channel: Connection
    report: Report | None = None
    restart: Restart | None = None
    alive: bool = True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended and its number may be another's."""
        if self.alive:
            os.kill(self.pid, number)


def _fork(job: Job, node: int) -> _Agent:
    ours, theirs = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Agent(pid, ours)
    code = 1
    try:
        ours.close()
        program = job.program
        if job.listener is not None:
            port = job.listener.getsockname()[1]
            job.listener.close()
            program = replace(program, config=_meet_at(program, port))
        code = agent.run(program, job.nodes > 1, theirs)
    finally:
        # Nothing of the launcher, which this process is a copy of, may run after this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _meet_at(program: Program, port: int) -> LaunchConfig:
    return replace(
        program.config,
        rdzv_backend="c10d",
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={**program.config.rdzv_configs, "is_host": "false"},
        local_addr="127.0.0.1",
    )


class _Supervisor:
    """Watches the agents of a job from first to last."""

    def __init__(self, job: Job, agents: list[_Agent]) -> None:
        self._job = job
        self._agents = agents
        self._stop_at_s: float | None = None
        self._kill_at_s: float | None = None
        self._stop_signal = 0
        self._store: TCPStore | None = None
        if job.listener is not None:
            self._store = TCPStore(
                "127.0.0.1",
                job.listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=job.listener.detach(),
            )

    def run(self) -> int:
        """Wait for all agents; stop them when one fails or a signal arrives."""
        # A signal is a byte on this pipe: waiting for agents and for signals is one wait.
        signals, self._signal_writer = os.pipe()
        for end in (signals, self._signal_writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._signal_writer, warn_on_full_buffer=False)
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: None)
        try:
            while any(each.alive for each in self._agents):
                self._step(signals)
        finally:
            self._kill(self._agents)
        return self._conclude()

    def _step(self, signals: int) -> None:
        channels = {each.channel: each for each in self._agents if each.alive}
        deadlines = [at_s for at_s in (self._stop_at_s, self._kill_at_s) if at_s is not None]
        left_s = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        if self._kill_at_s is not None:
            left_s = min(_IDLE_S, left_s or 0.0)
        events = wait([*channels, signals], left_s)
        for event in events:
            if event == signals:
                self._on_signal(os.read(signals, 64)[-1])
            else:
                self._on_message(channels[event])  # type: ignore[index]
        if not events and self._kill_at_s is not None:
            # An agent whose ranks ended waits for other nodes in C++, where it sees no signal.
            self._kill([each for each in self._agents if not children(each.pid)])
        now_s = time.monotonic()
        if self._stop_at_s is not None and now_s >= self._stop_at_s:
            self._stop()
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill(self._agents)

    def _on_signal(self, number: int) -> None:
        if self._stop_signal:
            # The second Ctrl-C: no more time for ranks to end by themselves.
            self._kill(self._agents)
        self._stop_signal = self._stop_signal or number
        self._stop()

    def _on_message(self, each: _Agent) -> None:
        try:
            message = each.channel.recv()
            if isinstance(message, Restart):
                each.restart = message
                self._report_restart()
                return
            each.report = message
        except EOFError:
            each.alive = False
            each.channel.close()
            os.waitpid(each.pid, 0)
        failed = each.report is None or each.report.failures or each.report.problem
        if failed and self._stop_at_s is None and self._kill_at_s is None:
            self._stop_at_s = time.monotonic() + _OTHER_NODES_S

    def _report_restart(self) -> None:
        """Report the cause once every node restarts: any of them may hold the root cause."""
        restarts = [each.restart for each in self._agents if each.restart is not None]
        if len(restarts) < len(self._agents):
            return
        failures = [failure for restart in restarts for failure in restart.failures]
        number, most = max(restart.number for restart in restarts), restarts[0].most
        lines = [render(failures, self._job.world_size)] if failures else []
        lines.append(f"hccl-launch: restart {number} of {most}: all ranks start again")
        print("\n".join(lines), file=sys.stderr, flush=True)
        for each in self._agents:
            each.restart = None

    def _stop(self) -> None:
        """Ask the agents to end their ranks and themselves."""
        self._stop_at_s = None
        for each in self._agents:
            each.signal(signal.SIGTERM)
        grace_s = self._job.program.config.shutdown_timeout or 0
        self._kill_at_s = self._kill_at_s or time.monotonic() + grace_s + _AGENT_EXTRA_S

    def _kill(self, agents: list[_Agent]) -> None:
        """End agents and what they started at once."""
        for each in agents:
            for rank_pid in children(each.pid) if each.alive else ():
                with suppress(ProcessLookupError):
                    os.killpg(rank_pid, signal.SIGKILL)
            each.signal(signal.SIGKILL)

    def _conclude(self) -> int:
        """Print how the job ended and return the exit code."""
        reports = [each.report for each in self._agents if each.report is not None]
        failures = [failure for report in reports for failure in report.failures]
        if failures:
            print(render(failures, self._job.world_size), file=sys.stderr, flush=True)
            return first_failure(failures).shell_code
        if self._stop_signal:
            name = signal.Signals(self._stop_signal).name
            print(f"hccl-launch: stopped by {name}; all ranks were ended", file=sys.stderr)
            return 128 + self._stop_signal
        for report in reports:
            if report.problem:
                raise LaunchError(report.problem)
        if len(reports) < len(self._agents):
            raise LaunchError("an agent was killed; its ranks ended with it")
        return 0
