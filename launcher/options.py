"""The command line: torchrun's options under torchrun's names, and whether nodes are emulated.

The parser is torchrun's own, so options of a newer torch work without a change here. This file
regroups its help, checks the values, and decides where the nodes are.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from torch.distributed.elastic.multiprocessing import Std
from torch.distributed.run import determine_local_world_size, get_args_parser, parse_min_max_nnodes

_ABOUT = """\
Starts the ranks of a job: torchrun's options, and several nodes on one machine.

  hccl-launch --nproc-per-node 8 train.py --epochs 3
      8 ranks on this machine
  hccl-launch --nnodes 2 --nproc-per-node 8 train.py
      16 ranks as on 2 nodes of 8, emulated on this machine: ranks of different nodes share no
      memory and talk TCP
  hccl-launch --nnodes 2 --nproc-per-node 8 --node-rank 0 --master-addr HOST train.py
      one of 2 real nodes; HOST is the address of node 0, the other node runs --node-rank 1

A rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT
in its environment. The first rank that fails ends the job: its traceback is printed and its exit
code is the launcher's.
"""
_GROUPS = {
    "size of the job": ("nnodes", "nproc_per_node"),
    "the program": ("training_script", "training_script_args", "module", "no_python", "run_path"),
    "where real nodes meet": (
        *("node_rank", "master_addr", "master_port", "local_addr", "standalone"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
    ),
    "failures": ("max_restarts", "monitor_interval", "shutdown_timeout", "signals_to_handle"),
    "logs": ("log_dir", "redirects", "tee", "local_ranks_filter"),
}
# Any of these says that the nodes are real ones.
_MEETING = ("node_rank", "master_addr", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
_SCHEDULER = ("SLURM_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "GROUP_RANK", "NODE_RANK")


class UsageError(Exception):
    """The command line cannot be carried out; the message says why, in one line."""


@dataclass(frozen=True)
class Request:
    """A checked command line."""

    args: argparse.Namespace  # torchrun's options
    local_nodes: int | None  # how many to start here; None: this is one of several real ones
    ranks_per_node: int
    scheduler: str = ""  # the variable that kept nodes from being emulated, if one did

    @property
    def emulated(self) -> bool:
        """Whether this machine plays several nodes."""
        return self.local_nodes is not None and self.local_nodes > 1


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Read and check the command line; raise UsageError, or SystemExit as argparse does."""
    parser = _parser()
    defaults = {name: parser.get_default(name) for name in (*_MEETING, "master_port")}
    # Without its default, an option that was left out is None; torchrun reads PET_ variables too.
    parser.set_defaults(**{name: None for name in defaults if f"PET_{name.upper()}" not in environ})
    args = parser.parse_args(argv)
    given = {name for name in defaults if getattr(args, name) is not None}
    vars(args).update({name: defaults[name] for name in defaults.keys() - given})
    _check_options(args)
    fewest, most = _nodes(args.nnodes)
    ranks = _ranks(args.nproc_per_node)
    _check_program(args)
    scheduler = next((name for name in environ if name.startswith(_SCHEDULER)), "")
    if args.standalone or (most == 1 and not given):
        return Request(args, most, ranks)
    if fewest < most or most == 1 or given & set(_MEETING):
        return Request(args, None, ranks)
    return Request(args, None if scheduler else most, ranks, scheduler)


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = "hccl-launch"
    parser.usage = "hccl-launch [options] script.py [arguments of the script]"
    parser.description = _ABOUT
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    by_name = {action.dest: action for action in parser._actions}
    for title, names in _GROUPS.items():
        group = parser.add_argument_group(title)
        group._group_actions = [by_name[name] for name in names if name in by_name]
    grouped = {name for names in _GROUPS.values() for name in names}
    for old in (parser._optionals, parser._positionals):
        old._group_actions = [action for action in old._group_actions if action.dest not in grouped]
    parser._optionals.title = "torchrun's other options"
    parser._action_groups.sort(key=lambda group: group is parser._optionals)  # help lists it last
    return parser


def _check_options(args: argparse.Namespace) -> None:
    if args.master_port is not None and not 0 < args.master_port < 65536:
        raise UsageError(f"--master-port: expected 1 to 65535, got {args.master_port}")
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts: expected 0 or more, got {args.max_restarts}")
    for name, text in (("--tee", args.tee), ("--redirects", args.redirects)):
        try:
            Std.from_str(text)
        except ValueError:
            raise UsageError(
                f"{name}: expected 0 to 3 or LOCAL_RANK:0-3,..., got {text!r}"
            ) from None


def _nodes(text: str) -> tuple[int, int]:
    try:
        fewest, most = parse_min_max_nnodes(text)
    except (ValueError, RuntimeError):
        raise UsageError(f"--nnodes: expected a number or MIN:MAX, got {text!r}") from None
    if not 0 < fewest <= most:
        raise UsageError(f"--nnodes: expected 1 or more (MIN <= MAX), got {text!r}")
    return fewest, most


def _ranks(text: str) -> int:
    try:
        count: int = determine_local_world_size(text)
    except ValueError:
        raise UsageError(
            f"--nproc-per-node: expected a number, or cpu, gpu, xpu or auto where this machine "
            f"has such, got {text!r}"
        ) from None
    if count < 1:
        raise UsageError(f"--nproc-per-node: expected 1 or more, got {text!r}")
    return count


def _check_program(args: argparse.Namespace) -> None:
    name = args.training_script
    if args.module and args.no_python:
        raise UsageError("-m and --no-python exclude each other")
    if args.module:
        found = PathFinder.find_spec(name.partition(".")[0], [os.getcwd(), *sys.path]) is not None
    elif args.no_python:
        found = shutil.which(name) is not None
    else:
        found = Path(name).exists()
    if not found:
        what = "module" if args.module else "program" if args.no_python else "script"
        raise UsageError(f"{what} not found: {name}")
