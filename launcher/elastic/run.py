"""The entry: from the command line to the exit code of this node.

The command line is torchrun's, read by torchrun's own parser. Rendezvous, restarts and log files
are elastic's.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch.distributed import DistNetworkError
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import api as rendezvous
from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from torch.distributed.launcher import api
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import config_from_args, determine_local_world_size, get_args_parser

from hccl_py.launcher.command_line.parser import parser
from hccl_py.launcher.elastic.agent import OtherNodeFailedError, reporting_agent
from hccl_py.launcher.elastic.meeting import is_here, wait_for_store
from hccl_py.launcher.elastic.members import Members
from hccl_py.launcher.elastic.ranks import LocalRanks
from hccl_py.launcher.exit_codes import LOST_NODE, MISSING_NODE, USAGE
from hccl_py.launcher.failure import first_failure, render
from hccl_py.launcher.job.program import WORKER
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, Options
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.placement.accelerators import framework_variables
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.network.interfaces import address_towards

# Any of these says that there are other nodes.
_MEETING = ("--node-rank", "--node_rank", "--master-addr", "--master_addr")
# These loggers warn of each signal sent, exit code and lost store: the report contains them.
_NOISY = tuple(
    f"torch.distributed.elastic.{name}" for name in ("multiprocessing", "agent", "rendezvous")
)


def run(checked: Options, folder: Path, words: Sequence[str]) -> int:
    """Run the ranks to their end, report failures, and return the exit code; 0 if stopped."""
    _quieten()
    args = _parser().parse_args(words)
    limit = f"join_timeout={args.connect_timeout:.0f}"
    args.rdzv_conf = f"{limit},{args.rdzv_conf}" if args.rdzv_conf else limit
    if checked.by_arrival and checked.head is not None and args.rdzv_backend in ("static", "c10d"):
        try:
            _prepare_meeting(args, checked.head)
        except TimeoutError as error:
            say(f"error: {error}")
            return MISSING_NODE
    if args.log_dir is None:
        args.log_dir = str(folder)  # error files alone, which the report contains
    elif args.tee == "0" and args.redirects == "0":
        args.tee = "3"  # --log-dir alone keeps every rank's output, and prints it as well
    return _run(args, words)


def _prepare_meeting(args: argparse.Namespace, endpoint: tuple[str, int]) -> None:
    """Complete the options of c10d's rendezvous, and wait for the node of the endpoint."""
    args.rdzv_backend, args.node_rank = "c10d", 0  # any other number would be a warning
    # Where rank 0 runs, the others reach it there: never by the name of the machine.
    args.local_addr = args.local_addr or address_towards(endpoint[0], None)
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


def _run(args: argparse.Namespace, words: Sequence[str]) -> int:
    if not (args.no_python or args.run_path):
        script = [args.training_script, *args.training_script_args]
        args.training_script_args = ["-m", *script] if args.module else script
        args.training_script, args.module = WORKER, False
    ranks_here = determine_local_world_size(args.nproc_per_node)
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks_here)))
    os.environ.update(framework_variables(os.environ))
    if not (args.rdzv_endpoint or any(word.startswith(_MEETING) for word in words)):
        args.standalone = True
    args.master_port = args.master_port or DEFAULT_MASTER_PORT
    try:
        config, command, arguments = config_from_args(args)
    except (AssertionError, ValueError, RuntimeError, OSError) as error:
        say(f"error: {_one_line(error)}")
        return USAGE
    assert config.logs_specs is not None, "config_from_args always chooses one"
    ranks = LocalRanks(config.logs_specs)
    config = replace(config, logs_specs=ranks)
    _mend_torch(ranks)
    try:
        elastic_launch(config, command)(*arguments)
        return 0
    except SignalException:
        return 0
    except ChildFailedError as error:
        failures = ranks.failures({each.local_rank: each for each in error.failures.values()})
        text, code = render(failures, ranks.world_size), first_failure(failures).shell_code
    except Exception as error:
        problem, code = _why(error, config)
        text = f"hccl-launch: error: {problem}"
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
    return code


def _mend_torch(ranks: LocalRanks) -> None:
    """Put our parts in the places of torch's."""
    # Elastic lends its own store to the ranks, with the keys of the failed attempt: the next
    # attempt would connect to ended ranks. Without it, rank 0 opens a fresh store.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    # Seconds pass until rank 0 listens on this port: no outgoing connection may take it.
    rendezvous.get_free_port = free_port  # type: ignore[attr-defined]
    # Elastic only logs that it restarts, and not because of which rank.
    api.LocalElasticAgent = reporting_agent(ranks)  # type: ignore[attr-defined]
    c10d_rendezvous_backend._matches_machine_hostname = is_here  # type: ignore[attr-defined]
    dynamic_rendezvous._BackendRendezvousStateHolder = Members  # type: ignore


def _why(error: Exception, config: LaunchConfig) -> tuple[str, int]:
    """Return what elastic could not do, in a line, and the exit code."""
    where = config.rdzv_endpoint
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
