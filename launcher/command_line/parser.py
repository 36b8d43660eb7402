"""What the options are called, and the text of --help."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hccl_py.launcher.command_line.values import seconds, whole
from hccl_py.launcher.options import DEFAULT_MASTER_PORT
from hccl_py.launcher.placement.binding import Bind
from hccl_py.launcher.usage_error import UsageError

_ABOUT = """\
  hccl-launch --nproc 8 train.py --epochs 3
      8 ranks on this machine
  hccl-launch --nnodes 2 --nproc 8 train.py
      16 ranks as on 2 nodes of 8, emulated here: ranks of different nodes talk TCP
  hccl-launch --hosts node-a:8,node-b:8 train.py
      16 ranks on 2 hosts, which are reached by ssh
  hccl-launch --nnodes 2 --nproc 8 --node-rank 0 --master-addr HOST train.py
      one of 2 real nodes; HOST is the address of node 0, the other node runs --node-rank 1

Starts the ranks of a job. A rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK,
MASTER_ADDR and MASTER_PORT in its environment. The first rank that fails ends the job on all nodes:
its traceback is printed, and its exit code is the launcher's."""
_EPILOG = """\
torchrun's other options, and --nnodes MIN:MAX, run on torch.distributed.elastic: see
torchrun --help. Every option has torchrun's spelling with _ too.

exit codes: 0; the first failing rank's; 2 wrong arguments; 69 a node did not come; 70 hccl-launch
or the network of --emulate was killed; 71 a node was lost; 78 preflight found errors; 126 the
program cannot run; 127 it was not found; 128 + the signal that ended the job"""
_ELASTIC = ("--rdzv-conf", "--role", "--event-log-handler")
# Without effect: the agent is told of ends at once, every rank is a program of its own, and the
# signals that stop a program stop the job.
_WITHOUT_EFFECT: Mapping[str, Mapping[str, Any]] = {
    "--monitor-interval": {"type": seconds},
    "--start-method": {"choices": ("spawn", "fork", "forkserver")},
    "--signals-to-handle": {},
}
# torchrun's options that hccl-launch does not have, and what it has instead.
_OUTPUT = "hccl-launch itself prints and keeps what ranks write: --log-dir, --redirects, --tee"
_REFUSED = {
    "--logs-specs": _OUTPUT,
    "--duplicate-stdout-filters": _OUTPUT,
    "--duplicate-stderr-filters": _OUTPUT,
    "--numa-binding": "--bind numa gives each rank the cores of a NUMA node",
    "--virtual-local-rank": "set CUDA_VISIBLE_DEVICES by LOCAL_RANK before torch is imported",
}
_HELP_COLUMN, _HELP_WIDTH = 32, 100


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = _Parser(
        prog="hccl-launch",
        usage="hccl-launch [options] script.py [arguments of the script]",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=_HELP_COLUMN, width=_HELP_WIDTH
        ),
        allow_abbrev=False,
    )
    made.add_argument("--version", action=_Version)
    for add_group in (
        _add_size,
        _add_program,
        _add_hosts,
        _add_nodes,
        _add_looks,
        _add_output,
        _add_failures,
    ):
        add_group(made)
    for name in _ELASTIC:
        _add(made, name, help=argparse.SUPPRESS)
    for name, how in _WITHOUT_EFFECT.items():
        _add(made, name, help=argparse.SUPPRESS, **how)
    for name in _REFUSED:
        _add(made, name, nargs="?", action=_Refused, help=argparse.SUPPRESS)
    return made


def needs_elastic(args: argparse.Namespace) -> bool:
    """Return whether an option was given that only torch.distributed.elastic knows."""
    return any(getattr(args, name[2:].replace("-", "_")) for name in _ELASTIC)


def _add_size(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("size of the job")
    _add(group, "--nnodes", metavar="N", help="nodes, or MIN:MAX (1)")
    _add(
        group,
        "--nproc-per-node",
        "--nproc",
        metavar="N",
        help="ranks on each node; auto and cpu: one for each core; gpu (1)",
    )
    _add(group, "--world-size", type=whole, metavar="N", help="ranks of all nodes together")
    _add(
        group, "--emulate", metavar="FILE", help="the nodes of FILE, emulated here with their links"
    )
    # gaudi_spawn.py's choice of what starts the ranks; hccl-launch always does.
    for name in ("--use-mpi", "--use-deepspeed"):
        _add(group, name, action="store_true", help=argparse.SUPPRESS)


def _add_program(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("the program")
    _add(group, "-m", "--module", action="store_true", help="it is a module, as python -m")
    _add(group, "--no-python", action="store_true", help="it is no Python script")
    _add(group, "--run-path", action="store_true", help=argparse.SUPPRESS)
    _add(group, "--replace-gloo", action="store_true", help="hccl where it asks torch for gloo")
    _add(group, "--habana-shim", action="store_true", help="a program for Gaudi, on the CPU")
    group.add_argument("script", help="script.py, module or program")
    group.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    group._group_actions[-1].required = False  # argparse says otherwise of such an argument


def _add_hosts(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("other hosts, over ssh")
    _add(group, "--hosts", metavar="A:8,B:8", help="hosts and their ranks")
    _add(group, "--hostfile", type=Path, metavar="FILE", help="a line for each: HOST slots=8")
    _add(group, "--ssh-port", type=whole, metavar="P", help="of every sshd")
    _add(group, "--ssh-user", metavar="NAME", help="on every host")
    _add(group, "--ssh-option", action="append", metavar="K=V", help="as ssh -o; repeatable")
    _add(group, "-x", "--export", action="append", metavar="NAME[=V]", help="variable to pass on")
    _add(group, "--env-file", type=Path, action="append", metavar="FILE", help="lines NAME=value")
    _add(group, "--remote-python", metavar="PATH", help="the Python there (the one here)")
    _add(group, "--remote-dir", metavar="PATH", help="working directory there (the one here)")


def _add_nodes(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("real nodes, where each runs hccl-launch")
    _add(group, "--node-rank", type=whole, metavar="I", help="number of this node, from 0")
    _add(group, "--master-addr", metavar="HOST", help="node 0, as the others reach it")
    _add(
        group,
        "--master-port",
        type=whole,
        metavar="P",
        help=f"port of the ranks' store there; hccl-launch takes P + 1 ({DEFAULT_MASTER_PORT})",
    )
    _add(group, "--rdzv-endpoint", metavar="HOST:P", help="instead: numbers in order of arrival")
    _add(group, "--rdzv-backend", help=argparse.SUPPRESS)
    _add(group, "--rdzv-id", metavar="ID", help="name of the job, the same on all nodes")
    _add(group, "--local-addr", help=argparse.SUPPRESS)
    _add(group, "--standalone", action="store_true", help="this machine alone")
    _add(
        group,
        "--connect-timeout",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds that all nodes have to come (300)",
    )


def _add_looks(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("before the job")
    _add(group, "--check", action="store_true", help="only check the nodes and their network")
    _add(group, "--dry-run", action="store_true", help="only print where and how each rank runs")
    _add(
        group,
        "--bind",
        choices=[each.value for each in Bind],
        default="none",
        help="which cores a rank gets (none: all)",
    )
    _add(group, "--print-sbatch", action="store_true", help="only print a batch script for Slurm")
    _add(group, "--print-k8s", action="store_true", help="only print a manifest for Kubernetes")


def _add_output(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("output of the ranks")
    _add(
        group,
        "--prefix",
        choices=("auto", "always", "never"),
        default="auto",
        help="[host:rank] before each line (auto: if there are several ranks)",
    )
    _add(group, "--log-dir", metavar="DIR", help="keep it in DIR/attempt_0/rank_3.log too")
    _add(group, "-r", "--redirects", default="0", metavar="S", help="1, 2, 3: only in the log")
    _add(group, "-t", "--tee", default="0", metavar="S", help="1, 2, 3: printed, and in the log")
    _add(group, "--local-ranks-filter", default="", metavar="I,J", help="print only these")


def _add_failures(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("failures")
    _add(
        group,
        "--max-restarts",
        type=whole,
        default=0,
        metavar="N",
        help="how often all ranks start again (0)",
    )
    _add(
        group,
        "--min-ranks",
        type=whole,
        default=0,
        metavar="N",
        help="the others go on when a rank fails, while N are left (all)",
    )
    _add(
        group,
        "--shutdown-timeout",
        type=seconds,
        default=30.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL of a rank that has to end (30)",
    )


def _add(group: "argparse._ActionsContainer", *names: str, **how: object) -> None:
    """Add an option under torchrun's spelling with underscores as well, which help leaves out."""
    group.add_argument(*names, **how)  # type: ignore[arg-type]
    action = group._actions[-1]
    for name in names:
        if "-" in name[2:]:
            alias = "--" + name[2:].replace("-", "_")
            group._option_string_actions[alias] = action


class _Parser(argparse.ArgumentParser):
    """Has every error in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


class _Refused(argparse.Action):
    """Names what hccl-launch has instead of an option."""

    def __call__(self, *_: object) -> None:
        raise UsageError(f"{self.option_strings[0]}: {_REFUSED[self.option_strings[0]]}")


class _Version(argparse.Action):
    """Reads the version only when it is asked for: reading it doubles the time to start."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"hccl-py {version('hccl-py')}")
        parser.exit()
