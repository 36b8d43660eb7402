"""The agent: torch elastic in a process of its own, which starts the ranks of this machine.

`job` forks it. It reports how its ranks failed, or why it could not do its work, and its exit code
becomes the launcher's. Emulated nodes have one agent: to elastic their ranks are those of one node,
and `LocalRanks` gives each rank its node.
"""

import ctypes
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import api as rendezvous
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hccl_py.launcher.failure import Failure, first_failure, render
from hccl_py.schedulers.ports import free_port

_PR_SET_PDEATHSIG = 1
# These loggers warn of each signal sent and each exit code, which the report contains already.
_NOISY = ("torch.distributed.elastic.multiprocessing", "torch.distributed.elastic.agent")


@dataclass(frozen=True)
class Program:
    """What to run on this machine."""

    config: LaunchConfig
    command: Callable[..., Any] | str
    arguments: tuple[str, ...]
    world_size: int | None  # of the whole job; None: not known before it starts
    emulated_nodes: int  # 0: this machine is a node itself


def run(program: Program) -> int:
    """Run the ranks to their end, report failures, and return the exit code; 0 if stopped."""
    _detach()
    assert program.config.logs_specs is not None, "config_from_args always chooses one"
    ranks = LocalRanks(program.config.logs_specs, program.emulated_nodes)
    config = replace(program.config, logs_specs=ranks)
    if config.max_restarts:
        # Elastic lends its own store to the ranks, with the keys of the failed attempt: the next
        # attempt would connect to ended ranks. Without it, rank 0 opens a fresh store.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        # Seconds pass until rank 0 listens on this port: no outgoing connection may take it.
        rendezvous.get_free_port = free_port  # type: ignore[attr-defined]
        # Elastic only logs that it restarts, and not because of which rank.
        api.LocalElasticAgent = _reporting_agent(ranks, program.world_size)  # type: ignore[attr-defined]
    try:
        elastic_launch(config, program.command)(*program.arguments)
        return 0
    except SignalException:
        return 0
    except ChildFailedError as error:
        failures = ranks.failures({each.local_rank: each for each in error.failures.values()})
        text, code = render(failures, program.world_size), first_failure(failures).shell_code
    except Exception as error:
        problem = _one_line(error)
        if "EADDRINUSE" in problem:
            problem = f"{config.rdzv_endpoint} is in use; choose another --master-port"
        text, code = f"hccl-launch: error: {problem}", 2
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    return code


def _reporting_agent(ranks: "LocalRanks", world_size: int | None) -> type[LocalElasticAgent]:
    """Return elastic's agent, which also prints why it restarts the ranks."""

    class ReportingAgent(LocalElasticAgent):
        def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
            result: RunResult = super()._monitor_workers(worker_group)
            self._failures = {each.local_rank: each for each in result.failures.values()}
            return result

        def _restart_workers(self, worker_group: WorkerGroup) -> None:
            # The next attempt replaces the files of this one, so they are read first. Without
            # failures here it was another node's rank that failed.
            failures = ranks.failures(self._failures)
            most = worker_group.spec.max_restarts
            number = most - self._remaining_restarts
            lines = [render(failures, world_size)] if failures else []
            lines.append(f"hccl-launch: restart {number} of {most}: all ranks start again")
            print("\n".join(lines), file=sys.stderr, flush=True)
            super()._restart_workers(worker_group)

    return ReportingAgent


def _detach() -> None:
    """Leave the terminal's Ctrl-C to the launcher, and end when the launcher does."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "LOGLEVEL" not in os.environ:
        for name in _NOISY:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(logging.NullHandler())


class LocalRanks(LogsSpecs):
    """The ranks of this machine: their environments, their log files and how they failed.

    Elastic calls `reify` with the environments just before it starts the ranks, when the nodes
    have met and this node knows its number.
    """

    def __init__(self, inner: LogsSpecs, emulated_nodes: int) -> None:
        self._inner = inner
        self._emulated_nodes = emulated_nodes
        self._environments: dict[int, dict[str, str]] = {}
        self._files = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments and return where each rank's output goes."""
        for number, env in envs.items():
            if self._emulated_nodes:
                ranks_per_node = len(envs) // self._emulated_nodes
                node, local_rank = divmod(number, ranks_per_node)
                env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"] = str(local_rank), str(ranks_per_node)
                env["GROUP_RANK"], env["GROUP_WORLD_SIZE"] = str(node), str(self._emulated_nodes)
                env["HCCL_NODE_ID"] = f"emulated-node-{node}"
            env["NODE_RANK"] = env["GROUP_RANK"]
        self._environments = envs
        self._files = self._inner.reify(envs)
        return self._files

    @property
    def root_log_dir(self) -> str:
        """Folder of all log files."""
        return self._inner.root_log_dir

    def failures(self, noticed: Mapping[int, ProcessFailure]) -> tuple[Failure, ...]:
        """Return the failures of this attempt, given those that elastic noticed by its local rank.

        A rank that recorded an exception failed, even if elastic stopped it before its process
        ended: the ranks that it failed may well end first.
        """
        found = []
        for number, env in self._environments.items():
            record = _record(self._files.error_files[number])
            process = noticed.get(number)
            if record or process is not None:
                log = self._files.stderrs[number] or self._files.stdouts[number]
                found.append(_failure(env, process, record, "" if log == os.devnull else log))
        return tuple(found)


def _record(path: str) -> dict[str, Any]:
    with suppress(OSError, ValueError, KeyError), open(path) as file:
        record = json.load(file)["message"]
        if isinstance(record, str):
            record = {"message": record, "extraInfo": {}}
        # Elastic's timestamp has whole seconds; the file's shows which of several ranks was first.
        return {**record["extraInfo"], "message": record["message"], "at_s": os.stat(path).st_mtime}
    return {}


def _failure(
    env: Mapping[str, str], process: ProcessFailure | None, record: Mapping[str, Any], log: str
) -> Failure:
    return Failure(
        rank=int(env["RANK"]),
        node=int(env["NODE_RANK"]),
        local_rank=int(env["LOCAL_RANK"]),
        pid=process.pid if process else record.get("pid", 0),
        # Elastic may have stopped a rank between its exception and its end.
        exit_code=process.exitcode if process and (process.exitcode > 0 or not record) else 1,
        kind=record.get("type", ""),
        message=record.get("message", ""),
        traceback=record.get("py_callstack", ""),
        at_s=record["at_s"] if record or process is None else float(process.timestamp),
        log=log,
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({_one_line(error.__cause__)})" if error.__cause__ is not None else text
