"""The entry: from the command line to the exit code of this node.

The command line is torchrun's, read by torchrun's own parser. Rendezvous and restarts are torch's.
"""

import argparse
import logging
import os
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch.distributed import DistNetworkError
from torch.distributed.elastic import events
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.events.handlers import get_logging_handler
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser

from hccl_py.launcher.command_line.parser import parser
from hccl_py.launcher.elastic.agent import NodeAgent, NodeLostError
from hccl_py.launcher.elastic.board import OtherNodeFailedError
from hccl_py.launcher.elastic.meeting import is_here, wait_for_store
from hccl_py.launcher.elastic.ranks import CannotStartError, LocalRanks
from hccl_py.launcher.elastic.rendezvous import join
from hccl_py.launcher.exit_codes import AGENT_KILLED, LOST_NODE, MISSING_NODE, USAGE
from hccl_py.launcher.job.agent import watch_signals
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.program import Program
from hccl_py.launcher.lookups import address_of
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, Options
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.parts.settings import program_of, slots_of
from hccl_py.transport.network.interfaces import address_towards

# torch's names for a rendezvous at the place that hccl-launch's own options name.
_BY_PLACE = ("static", "c10d")
# These loggers warn of each signal sent, exit code and lost store: the report contains them.
_NOISY = tuple(
    f"torch.distributed.{name}"
    for name in ("run", "elastic.multiprocessing", "elastic.agent", "elastic.rendezvous")
)


def run(checked: Options, folder: Path, words: Sequence[str], stall_s: float) -> int:
    """Run the ranks to their end, report failures, and return the exit code.

    A rank without progress is named after `stall_s`; 0: none is.
    """
    _quieten()
    program = program_of(checked, folder, slots_of(checked, [0]))
    args = _parser().parse_args(words)
    limit = f"join_timeout={args.connect_timeout:.0f}"
    args.rdzv_conf = f"{limit},{args.rdzv_conf}" if args.rdzv_conf else limit
    if checked.by_arrival and checked.head is not None and args.rdzv_backend in _BY_PLACE:
        try:
            _prepare_meeting(args, checked.head)
        except TimeoutError as error:
            say(f"error: {error}")
            return MISSING_NODE
    config = _config(args, checked.head)
    return USAGE if config is None else _run(config, program, stall_s)


def _prepare_meeting(args: argparse.Namespace, endpoint: tuple[str, int]) -> None:
    """Complete the options of c10d's rendezvous, and wait for the node of the endpoint."""
    args.rdzv_backend, args.node_rank = "c10d", 0  # any other number would be a warning
    # Where rank 0 runs, the others reach it there: never by the name of the machine.
    args.local_addr = args.local_addr or address_towards(address_of(endpoint[0]), None)
    if not is_here(endpoint[0]):
        wait_for_store(endpoint, args.connect_timeout)


def _parser() -> argparse.ArgumentParser:
    """Return torchrun's parser, which also takes the options of hccl-launch."""
    made = get_args_parser()
    by_dest = {action.dest: action for action in made._actions}
    for action in parser()._actions:
        if action.option_strings:
            for name in action.option_strings:
                known = by_dest.get(action.dest, action)
                made._option_string_actions.setdefault(name, known)
            default = made.get_default(action.dest)
            made.set_defaults(**{action.dest: action.default if default is None else default})
    return made


def _config(args: argparse.Namespace, head: tuple[str, int] | None) -> LaunchConfig | None:
    """Have torchrun read its options; None: they make no sense, and a line said so."""
    if head is None and args.rdzv_backend in _BY_PLACE:
        args.rdzv_backend, args.rdzv_endpoint, args.local_addr = "c10d", "127.0.0.1:0", "127.0.0.1"
    args.master_port = args.master_port or DEFAULT_MASTER_PORT
    # `Options` says what these are here.
    args.nproc_per_node, args.log_dir, args.redirects, args.tee = "1", os.devnull, "0", "0"
    try:
        get_logging_handler(args.event_log_handler)
    except KeyError:
        say(f"error: --event-log-handler: expected one of torch's, got {args.event_log_handler!r}")
        return None
    try:
        return config_from_args(args)[0]
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        say(f"error: {_one_line(error)}")
        return None


def _run(config: LaunchConfig, program: Program, stall_s: float) -> int:
    loop = JobLoop()
    ranks = LocalRanks(loop, program, stall_s)
    watch_signals(loop, ranks.end_for, ranks.warn)
    lead = partial(_lead, config, program, ranks)
    threading.Thread(target=lead, name="hccl-elastic", daemon=True).start()
    loop.run()
    ranks.close()
    return AGENT_KILLED if ranks.exit_code is None else ranks.exit_code


def _lead(config: LaunchConfig, program: Program, ranks: LocalRanks) -> None:
    """Have torch's agent lead the ranks, on a thread of its own, and conclude with the outcome."""
    try:
        ranks.conclude(*_outcome(config, program, ranks))
    except Exception as error:
        problem, code = _why(error, config)
        ranks.conclude(code, f"hccl-launch: error: {problem}")


def _outcome(config: LaunchConfig, program: Program, ranks: LocalRanks) -> tuple[int, str]:
    handler = join(config, ranks.say)
    spec = WorkerSpec(
        role=config.role,
        local_world_size=len(program.slots),
        rdzv_handler=handler,
        entrypoint=program.command[0],
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
    )
    agent = NodeAgent(spec, ranks)
    try:
        agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
        if not agent.failures:
            return 0, ""
        return agent.conclude(), agent.report()
    except Exception:
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        handler.shutdown()


def _why(error: Exception, config: LaunchConfig) -> tuple[str, int]:
    """Return what elastic could not do, in a line, and the exit code."""
    where = config.rdzv_endpoint
    if isinstance(error, CannotStartError):
        return str(error), error.exit_code
    if isinstance(error, NodeLostError):
        return str(error), LOST_NODE
    if isinstance(error, RendezvousTimeoutError):
        return (
            f"fewer than {config.min_nodes} nodes came in time (--connect-timeout). Was "
            f"hccl-launch started there, with the same --rdzv-id? Can it reach {where}?"
        ), MISSING_NODE
    if isinstance(error, OtherNodeFailedError):
        return f"{error} (that node has the report)", error.exit_code
    if isinstance(error, RendezvousClosedError):
        return f"the job at {where} has ended; a new one needs another --rdzv-id", LOST_NODE
    problem = _one_line(error)
    if isinstance(error, ValueError) and "is not registered" in problem:
        backend = config.rdzv_backend
        return f"--rdzv-backend: expected one that torch knows, got {backend!r}", USAGE
    if "EADDRINUSE" in problem:
        return f"{where} is in use; choose another port", LOST_NODE
    if isinstance(error, RendezvousConnectionError | DistNetworkError):
        return (
            f"lost {where}: the node of --rdzv-endpoint ended or cannot be reached, and an elastic "
            "job ends with it"
        ), LOST_NODE
    return problem, LOST_NODE


def _quieten() -> None:
    if "LOGLEVEL" not in os.environ:
        for name in _NOISY:
            logging.getLogger(name).propagate = False
            logging.getLogger(name).addHandler(logging.NullHandler())


def _one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({_one_line(error.__cause__)})" if error.__cause__ is not None else text
