"""One node's agent: torch elastic in a process of its own, with the ranks' environment set.

`job` forks it. It says over a pipe that its ranks start again, a `Restart`, and how its node ended:
a `Report`, or nothing if it was stopped.
"""

import ctypes
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import api as rendezvous
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hccl_py.launcher.failure import Failure
from hccl_py.launcher.ports import free_port

_PR_SET_PDEATHSIG = 1
# What these loggers warn of (each signal sent, each exit code) is part of the report already.
_NOISY = ("torch.distributed.elastic.multiprocessing", "torch.distributed.elastic.agent")


@dataclass(frozen=True)
class Program:
    """What every rank runs: elastic's configuration of a node, the command and its arguments."""

    config: LaunchConfig
    command: Callable[..., Any] | str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """How a node ended: the ranks that failed, or why the agent itself could not do its work."""

    failures: tuple[Failure, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Restart:
    """An attempt of a node that came to nothing: its ranks are stopped and start again.

    Attributes:
        failures: its own ranks that failed; none where it restarts because another node does.
        number: how many of its restarts are used up.
        most: how many it has.
    """

    failures: tuple[Failure, ...]
    number: int
    most: int


def run(program: Program, emulated: bool, channel: Connection) -> int:
    """Run one node's ranks to their end and send a `Report`.

    Args:
        program: what to run.
        emulated: whether this node is one of several on this machine.
        channel: the pipe to the launcher.

    Returns:
        The exit code of this process.
    """
    _detach()
    assert program.config.logs_specs is not None, "config_from_args always chooses one"
    worker_logs = WorkerLogs(program.config.logs_specs, emulated)
    config = replace(program.config, logs_specs=worker_logs)
    if config.max_restarts:
        # Elastic lends its own store to the ranks, keys of a failed attempt included: the next
        # attempt would meet the dead. Refused this one, elastic has rank 0 open a fresh store.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        # Seconds pass until rank 0 listens there: the port must not be one that others get to use.
        rendezvous.get_free_port = free_port  # type: ignore[attr-defined]
        # Elastic only logs that it restarts, and not which rank was to blame.
        api.LocalElasticAgent = _telling_agent(channel, worker_logs, emulated)  # type: ignore[attr-defined]
    try:
        elastic_launch(config, program.command)(*program.arguments)
    except ChildFailedError as error:
        failures = [_failure(rank, each, worker_logs) for rank, each in error.failures.items()]
        channel.send(Report(failures=tuple(failures)))
        return 1
    except SignalException:
        return 1
    except Exception as error:
        problem = _one_line(error)
        if "EADDRINUSE" in problem:
            problem = f"{config.rdzv_endpoint} is in use; choose another --master-port"
        channel.send(Report(problem=problem))
        return 1
    channel.send(Report())
    return 0


def _telling_agent(
    channel: Connection, logs: "WorkerLogs", emulated: bool
) -> type[LocalElasticAgent]:
    """Return elastic's agent with a word to the launcher before each restart."""

    class TellingAgent(LocalElasticAgent):
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            seen: RunResult = super()._monitor_workers(worker_group)
            self._failures = seen.failures
            return seen

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            if emulated and not self._failures:
                # Elastic counts for each node what its own ranks did. Emulated nodes come and go
                # together: a restart counts once for the job, and so on all of them.
                self._remaining_restarts -= 1
            # Before the files of this attempt make room for those of the next.
            failures = (_failure(*each, logs) for each in self._failures.items())
            most = worker_group.spec.max_restarts
            channel.send(Restart(tuple(failures), most - self._remaining_restarts, most))
            super()._restart_workers(worker_group)

    return TellingAgent


def _detach() -> None:
    """Leave the terminal's Ctrl-C to the launcher, and end when the launcher does."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "LOGLEVEL" not in os.environ:
        for name in _NOISY:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(logging.NullHandler())


class WorkerLogs(LogsSpecs):
    """The log files that elastic chose, and the last word on the environment of each rank.

    Elastic calls `reify` with the environments just before it starts the ranks, once the nodes
    have met and it is known which of them this one is.
    """

    def __init__(self, inner: LogsSpecs, emulated: bool) -> None:
        """Wrap elastic's own choice of files."""
        self._inner = inner
        self._emulated = emulated
        self.node = 0
        self.destinations = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments and return where each rank's output goes."""
        for env in envs.values():
            env["NODE_RANK"] = env["GROUP_RANK"]
            self.node = int(env["GROUP_RANK"])
            if self._emulated:
                env["HCCL_NODE_ID"] = f"emulated-node-{self.node}"
        self.destinations = self._inner.reify(envs)
        return self.destinations

    @property
    def root_log_dir(self) -> str:
        """Folder of all log files."""
        return self._inner.root_log_dir


def _failure(rank: int, process: ProcessFailure, logs: WorkerLogs) -> Failure:
    message, traceback, at_s = _recorded(process)
    record = logs.destinations.error_files[process.local_rank]
    return Failure(
        rank=rank,
        node=logs.node,
        local_rank=process.local_rank,
        pid=process.pid,
        exit_code=process.exitcode,
        message=message,
        traceback=traceback,
        at_s=at_s,
        log=_log_of(logs.destinations, process.local_rank, record),
    )


def _recorded(process: ProcessFailure) -> tuple[str, str, float]:
    """Return message, traceback and time of the exception on record, or empty ones."""
    # Elastic puts a sentence of its own in `message` where a rank left no record.
    if not os.path.isfile(process.error_file):
        return "", "", float(process.timestamp)
    # Elastic's timestamp has whole seconds; the file's tells which of several ranks was first.
    at_s = os.stat(process.error_file).st_mtime
    record: Any = process.message
    if isinstance(record, str):
        return record, "", at_s
    return record["message"], record["extraInfo"].get("py_callstack", ""), at_s


def _log_of(destinations: LogsDest, local_rank: int, record: str) -> str:
    path = destinations.stderrs[local_rank] or destinations.stdouts[local_rank]
    if path and path != os.devnull:
        return path
    return record if os.path.isfile(record) else "none; --log-dir DIR keeps what every rank prints"


def _one_line(error: BaseException) -> str:
    """Name the error and the one that caused it, without line breaks."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({_one_line(error.__cause__)})" if error.__cause__ is not None else text
