"""The agent of torch.distributed.elastic, which starts the ranks of this node.

It reports how its ranks failed, or why it could not do its work. Rendezvous, restarts and log files
are elastic's; the command line is torchrun's, read by torchrun's own parser.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.api import LogsDest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import api as rendezvous
from torch.distributed.launcher import api
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, determine_local_world_size, get_args_parser

from hccl_py.launcher import options
from hccl_py.launcher.exit_codes import LOST_NODE, USAGE
from hccl_py.launcher.failure import Failure, first_failure, render
from hccl_py.launcher.options import DEFAULT_MASTER_PORT
from hccl_py.schedulers.ports import free_port

_LOG_TAIL_BYTES = 4000
_WORKER = str(Path(__file__).parents[1] / "worker.py")
# Any of these says that there are other nodes.
_MEETING = ("--node-rank", "--node_rank", "--master-addr", "--master_addr")
# These loggers warn of each signal sent and each exit code, which the report contains already.
_NOISY = ("torch.distributed.elastic.multiprocessing", "torch.distributed.elastic.agent")


def run(words: Sequence[str]) -> int:
    """Run the ranks to their end, report failures, and return the exit code; 0 if stopped."""
    _quieten()
    args = _parser().parse_args(words)
    limit = f"join_timeout={args.connect_timeout:.0f}"
    args.rdzv_conf = f"{limit},{args.rdzv_conf}" if args.rdzv_conf else limit
    with _log_folder(args):
        return _run(args, words)


def _parser() -> argparse.ArgumentParser:
    """Return torchrun's parser, which also takes the options of hccl-launch."""
    made = get_args_parser()
    by_dest = {action.dest: action for action in made._actions}
    for action in options.parser()._actions:
        if action.option_strings:
            for name in action.option_strings:
                known = by_dest.get(action.dest, action)
                made._option_string_actions.setdefault(name, known)
            made.set_defaults(**{action.dest: made.get_default(action.dest) or action.default})
    return made


def _run(args: argparse.Namespace, words: Sequence[str]) -> int:
    if not (args.no_python or args.run_path):
        script = [args.training_script, *args.training_script_args]
        args.training_script_args = ["-m", *script] if args.module else script
        args.training_script, args.module = _WORKER, False
    ranks_here = determine_local_world_size(args.nproc_per_node)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks_here)))
    if not (args.rdzv_endpoint or any(word.startswith(_MEETING) for word in words)):
        args.standalone = True
    args.master_port = args.master_port or DEFAULT_MASTER_PORT
    try:
        config, command, arguments = config_from_args(args)
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        print(f"hccl-launch: error: {_one_line(error)}", file=sys.stderr)
        return USAGE
    assert config.logs_specs is not None, "config_from_args always chooses one"
    ranks = LocalRanks(config.logs_specs)
    config = replace(config, logs_specs=ranks)
    if config.max_restarts:
        # Elastic lends its own store to the ranks, with the keys of the failed attempt: the next
        # attempt would connect to ended ranks. Without it, rank 0 opens a fresh store.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
        # Seconds pass until rank 0 listens on this port: no outgoing connection may take it.
        rendezvous.get_free_port = free_port  # type: ignore[attr-defined]
        # Elastic only logs that it restarts, and not because of which rank.
        api.LocalElasticAgent = _reporting_agent(ranks)  # type: ignore[attr-defined]
    try:
        elastic_launch(config, command)(*arguments)
        return 0
    except SignalException:
        return 0
    except ChildFailedError as error:
        failures = ranks.failures({each.local_rank: each for each in error.failures.values()})
        text, code = render(failures, None), first_failure(failures).shell_code
    except Exception as error:
        problem = _one_line(error)
        if "EADDRINUSE" in problem:
            problem = f"{config.rdzv_endpoint} is in use; choose another --master-port"
        text, code = f"hccl-launch: error: {problem}", LOST_NODE
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    return code


def _reporting_agent(ranks: "LocalRanks") -> type[LocalElasticAgent]:
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
            lines = [render(failures, None)] if failures else []
            lines.append(f"hccl-launch: restart {number} of {most}: all ranks start again")
            print("\n".join(lines), file=sys.stderr, flush=True)
            super()._restart_workers(worker_group)

    return ReportingAgent


def _quieten() -> None:
    if "LOGLEVEL" not in os.environ:
        for name in _NOISY:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(logging.NullHandler())


@contextmanager
def _log_folder(args: argparse.Namespace) -> Iterator[None]:
    """Give the logs a folder if the command line names none; keep it only if logs are in it."""
    if args.log_dir is not None:
        if args.tee == "0" and args.redirects == "0":
            args.tee = "3"  # --log-dir alone keeps every rank's output, and prints it as well
        yield
        return
    folder = args.log_dir = tempfile.mkdtemp(prefix="hccl_launch_")
    try:
        yield
    finally:
        # Without --tee or --redirects it holds error files alone, which the report contains.
        if (args.tee, args.redirects) == ("0", "0") or not os.listdir(folder):
            shutil.rmtree(folder, ignore_errors=True)


class LocalRanks(LogsSpecs):
    """The ranks of this machine: their environments, their log files and how they failed.

    Elastic calls `reify` with the environments just before it starts the ranks, when the nodes
    have met and this node knows its number.
    """

    def __init__(self, inner: LogsSpecs) -> None:
        self._inner = inner
        self._environments: dict[int, dict[str, str]] = {}
        self._files = LogsDest()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments and return where each rank's output goes."""
        for env in envs.values():
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
        host="",
        pid=process.pid if process else record.get("pid", 0),
        # Elastic may have stopped a rank between its exception and its end.
        exit_code=process.exitcode if process and (process.exitcode > 0 or not record) else 1,
        kind=record.get("type", ""),
        message=record.get("message", ""),
        traceback=record.get("py_callstack", ""),
        at_s=record["at_s"] if record or process is None else float(process.timestamp),
        log=log,
        last_lines=tuple(_tail(log).splitlines()),
    )


def _tail(path: str) -> str:
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({_one_line(error.__cause__)})" if error.__cause__ is not None else text
