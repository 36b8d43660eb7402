"""Jobs whose size may change, and torchrun's own options: `torch.distributed.run` runs them.

hccl-launch reads the options, waits for the node of the endpoint, forwards signals and starts each
rank by `worker.py`. torch does the rest: rendezvous, restarts, output and log files. Only this file
of the launcher and the count of devices import torch.
"""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hccl_py.launcher.command_line.parser import parser
from hccl_py.launcher.exit_codes import LOST_NODE, MISSING_NODE, USAGE, UsageError
from hccl_py.launcher.failure import how_ended
from hccl_py.launcher.job.layout import WORKER
from hccl_py.launcher.machine.lookups import address_of
from hccl_py.launcher.machine.processes import children, freeze, takes, thaw
from hccl_py.launcher.options import JobOptions
from hccl_py.launcher.own_lines import keep_trying, say
from hccl_py.launcher.parts.settings import bind
from hccl_py.launcher.placement.binding import Bind, place
from hccl_py.launcher.placement.topology import framework_variables, read_machine
from hccl_py.launcher.signals import RESUME, SUSPEND, WARNINGS
from hccl_py.transport.network.interfaces import address_towards, describe_target, is_loopback

_PROBE_S = 2.0
_TORCH_LOG_LEVEL = "TORCH_CPP_LOG_LEVEL"
# torch's options that hccl-launch's own options replace.
_BY_PLACE = (None, "static", "c10d")


def check_options(options: JobOptions) -> None:
    """Reject options that torch does not have."""
    for name, is_given in {
        "--bind": options.bind is not Bind.NONE,
        "--prefix": options.output.prefix == "always",
        "--check": options.checks,
        "--min-ranks": options.min_ranks > 0,
    }.items():
        if is_given:
            raise UsageError(
                f"{name}: expected a job of fixed size, without torchrun's own options"
            )


def run(options: JobOptions, folder: Path, words: Sequence[str]) -> int:
    """Run this node's part of the job, and return its exit code.

    `folder` is for records of exceptions, and `words` are the command line. Until torch handles
    signals, a signal ends this process: an exception could be lost during an import.
    """
    for number in WARNINGS:
        signal.signal(number, _pass_on)
    signal.signal(SUSPEND, partial(_suspend, os.getppid()))
    signal.signal(RESUME, lambda *_: thaw([*children(os.getpid())]))
    args = parser().parse_args(words)
    try:
        if args.rdzv_backend in _BY_PLACE:
            _prepare_c10d(args, options)
        _set_environment(options)
        problem, code = _run(options, folder, args)
    except TimeoutError as error:
        problem, code = f"error: {error}", MISSING_NODE
    if problem:
        say(problem)
    return code


def _run(options: JobOptions, folder: Path, args: argparse.Namespace) -> tuple[str, int]:
    """Return the reason for the job's end, in a line, and the exit code."""
    # torch's C++ would log a page of frames for every ended connection; the ranks log errors.
    given = os.environ.get(_TORCH_LOG_LEVEL)
    os.environ[_TORCH_LOG_LEVEL] = given or "FATAL"
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import api
    from torch.distributed.run import parse_args, run

    if given is None:
        del os.environ[_TORCH_LOG_LEVEL]
    _log_restarts_alone()
    where = args.rdzv_endpoint
    try:
        run(parse_args(_words(options, folder, args)))  # type: ignore[no-untyped-call]
        return "", 0
    except ChildFailedError as error:
        return _first_failure(error.failures)
    except SignalException as stopped:
        return _stopped_by(stopped.sigval)
    except api.RendezvousTimeoutError:
        return (
            "error: too few nodes came in time (--connect-timeout). Was hccl-launch started there, "
            f"with the same --rdzv-id? Can it reach {where}?"
        ), MISSING_NODE
    except (api.RendezvousConnectionError, api.RendezvousClosedError, DistNetworkError):
        return (
            f"error: lost {where}: the node of --rdzv-endpoint ended or cannot be reached, and an "
            "elastic job ends with it"
        ), LOST_NODE
    except OSError as error:
        if error.filename is None:
            raise
        from hccl_py.launcher.job.agent import why_not_run

        what, code = why_not_run(error, options.program[0])
        return f"error: cannot start a rank: {what}", code
    except KeyError as unknown:  # torch looks up event handlers by name
        return f"error: --event-log-handler: expected one of torch's, got {unknown}", USAGE
    except (ValueError, AssertionError) as error:
        return f"error: torch.distributed.run: {' '.join(str(error).split())}", USAGE


def _words(options: JobOptions, folder: Path, args: argparse.Namespace) -> list[str]:
    """Return torchrun's command line for ours."""
    from torch.distributed.run import get_args_parser

    known = vars(get_args_parser().parse_args(["program"]))
    limit = f"join_timeout={options.connect_timeout_s:.0f}"
    args.rdzv_conf = f"{limit},{args.rdzv_conf}" if args.rdzv_conf else limit
    args.nproc_per_node = options.ranks_per_node
    args.shutdown_timeout = round(options.stop_s)
    if args.log_dir is not None and args.redirects == args.tee == "0":
        args.tee = "3"  # every rank's output is logged and printed
    args.log_dir = args.log_dir or str(folder)
    ours = {"module", "no_python", "run_path", "standalone"}  # passed differently below
    given = {
        name: value
        for name, value in vars(args).items()
        if name in known.keys() - ours and value not in (None, "", False)
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    python = [sys.executable, WORKER] if options.is_python else []
    return [*words, "--no-python", *python, *options.program]


def _prepare_c10d(args: argparse.Namespace, options: JobOptions) -> None:
    """Set the address of the store and the node that serves it, and wait for that node.

    torch recognises only addresses of the machine's own name as this machine's.
    """
    if options.coordinator is None:  # the whole job is here
        args.rdzv_backend, args.rdzv_endpoint, args.local_addr = "c10d", "127.0.0.1:0", "127.0.0.1"
        args.rdzv_id = args.rdzv_id or f"job-{os.urandom(4).hex()}"
    if options.coordinator is None or not options.by_arrival:
        return
    host, port = address_of(options.coordinator[0]), options.coordinator[1]
    args.rdzv_backend, args.node_rank = "c10d", None
    args.rdzv_endpoint = describe_target(options.coordinator)
    # The others reach rank 0 at its node's address, not by the machine's name.
    args.local_addr = args.local_addr or address_towards(host, None)
    try:
        bind(host, port).close()
    except OSError:  # another machine's address, or another process was first
        keep_trying(
            lambda: socket.create_connection((host, port), _PROBE_S).close(),
            f"no answer from the node of --rdzv-endpoint {args.rdzv_endpoint}",
            args.connect_timeout,
        )
    else:
        if not is_loopback(host):
            args.rdzv_conf = f"is_host=1,{args.rdzv_conf or ''}".rstrip(",")


def _set_environment(options: JobOptions) -> None:
    """Set the variables of a job of fixed size, unless the user has set them."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    os.environ.update(framework_variables(os.environ))
    where = place(read_machine(), options.ranks_per_node, Bind.NONE).places[0]
    os.environ.update(where.environment(os.environ))
    # torch would share its own store with the ranks: it keeps the keys of a failed attempt, and
    # later nodes do not know it.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


def _log_restarts_alone() -> None:
    """Have torch log by LOGLEVEL if it is set, else restarts only."""
    if "LOGLEVEL" in os.environ:
        return
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: "will restart" in record.getMessage())
    handler.setFormatter(logging.Formatter("hccl-launch: %(message)s"))
    for name in ("run", "elastic"):
        logger = logging.getLogger(f"torch.distributed.{name}")
        logger.propagate = False
        logger.addHandler(handler)
    logging.getLogger("torch.distributed.elastic.agent.server.api").setLevel(logging.INFO)


def _first_failure(failures: dict[int, Any]) -> tuple[str, int]:
    """Name this node's first failed rank; the ranks printed their exceptions themselves."""
    rank, first = min(failures.items(), key=lambda item: item[1].timestamp)
    where = f"{socket.gethostname()}, local rank {first.local_rank}, pid {first.pid}"
    code = first.exitcode if first.exitcode > 0 else 128 - first.exitcode
    return f"{how_ended(rank, first.exitcode)} ({where})", code


def _stopped_by(number: int) -> tuple[str, int]:
    return f"stopped by {signal.Signals(number).name}; all ranks were ended", 128 + number


def _pass_on(number: int, _frame: object) -> None:
    """Forward a signal to the ranks that handle it."""
    for pid in children(os.getpid()):
        if takes(pid, number):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _suspend(supervisor: int, *_: object) -> None:
    freeze([*children(os.getpid())])
    os.kill(supervisor, signal.SIGTSTP)
