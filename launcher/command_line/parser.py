"""The names of the options, and the text of --help."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hccl_py.command_line import Parser
from hccl_py.installation import PACKAGE, version_of
from hccl_py.launcher.command_line import values
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.options import DEFAULT_MASTER_PORT
from hccl_py.launcher.placement.binding import Bind

_ABOUT = """\
  hccl-launch --nproc 8 train.py --epochs 3
      8 ranks on this machine
  hccl-launch --nnodes 2 --nproc 8 train.py
      16 ranks as on 2 nodes of 8, emulated here: ranks of different nodes use TCP
  hccl-launch --hosts node-a:8,node-b:8 train.py
      16 ranks on 2 hosts, reached by ssh
  hccl-launch --nnodes 2 --nproc 8 --node-rank 0 --master-addr HOST train.py
      one of 2 real nodes; HOST is the address of node 0, the other node runs --node-rank 1

Starts the ranks of a job. A rank finds RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK,
MASTER_ADDR and MASTER_PORT in its environment. The first rank that fails ends the job on all nodes:
its traceback is printed, and its exit code is the launcher's."""
_EPILOG = """\
torchrun's other options, and --nnodes MIN:MAX, run on torch.distributed.elastic: see
torchrun --help. Every option has torchrun's spelling with _ too.

exit codes: 0; the first failing rank's; 2 wrong arguments; 69 a node did not connect; 70
hccl-launch or the network of --emulate was killed; 71 a node was lost; 78 preflight found errors;
126 the program cannot run; 127 it was not found; 128 + the signal that ended the job"""
_ELASTIC = ("--rdzv-conf", "--role", "--event-log-handler")
# Without effect: the kernel reports ends at once, every rank is a separate program, and the signals
# that stop a program stop the job.
_WITHOUT_EFFECT: Mapping[str, Mapping[str, Any]] = {
    "--monitor-interval": {"type": values.seconds},
    "--start-method": {"choices": ("spawn", "fork", "forkserver"), "type": str},
    "--signals-to-handle": {},
}
# torchrun's options that hccl-launch lacks, and the alternatives.
_OUTPUT = "hccl-launch itself prints and keeps what ranks write: --log-dir, --redirects, --tee"
_REFUSED = {
    "--logs-specs": _OUTPUT,
    "--duplicate-stdout-filters": _OUTPUT,
    "--duplicate-stderr-filters": _OUTPUT,
    "--numa-binding": "--bind numa gives each rank the cores of a NUMA node",
    "--virtual-local-rank": "set CUDA_VISIBLE_DEVICES by LOCAL_RANK before torch is imported",
}
_HELP_COLUMN, _HELP_WIDTH = 32, 100


def parser() -> Parser:
    """Return the parser of the command line."""
    made = _Parser(
        prog="hccl-launch",
        usage="hccl-launch [options] script.py [arguments of the script]",
        description=_ABOUT,
        epilog=_EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=_HELP_COLUMN, width=_HELP_WIDTH
        ),
    )
    made.add_argument("--version", action=_Version)
    group = made.add_argument_group("size of the job")
    _add(group, "--nnodes", "nodes, or MIN:MAX (1)", "N")
    ranks = "ranks on each node; auto and cpu: one for each core; gpu (1)"
    _add(group, "--nproc-per-node --nproc", ranks, "N", type=values.ranks)
    _add(group, "--world-size", "ranks of all nodes together", "N", type=values.count)
    _add(group, "--emulate", "the nodes of FILE, emulated here with their links", "FILE")
    # gaudi_spawn.py's choice of the launcher, which is always hccl-launch here.
    _add(group, "--use-mpi")
    _add(group, "--use-deepspeed")
    group = made.add_argument_group("the program")
    _add(group, "-m --module", "script is a module, as with python -m")
    _add(group, "--no-python", "script is a program without Python")
    _add(group, "--run-path")
    _add(group, "--replace-gloo", "use hccl where the script asks torch for gloo")
    _add(group, "--habana-shim", "run a script for Gaudi on the CPU")
    group.add_argument("script", help="script.py, module or program")
    group.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    group._group_actions[-1].required = False  # argparse requires such an argument by default
    _add_nodes(made)
    _add_rest(made)
    for name in _ELASTIC:
        _add(made, name, argparse.SUPPRESS, "X")
    for name, how in _WITHOUT_EFFECT.items():
        _add(made, name, argparse.SUPPRESS, "X", **how)
    for name in _REFUSED:
        _add(made, name, argparse.SUPPRESS, "X", nargs="?", action=_Refused)
    return made


def needs_elastic(args: argparse.Namespace) -> bool:
    """Return whether an option needs torch.distributed.elastic."""
    return any(getattr(args, name[2:].replace("-", "_")) for name in _ELASTIC)


def _add_nodes(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("other hosts, over ssh")
    _add(group, "--hosts", "hosts and their ranks", "A:8,B:8")
    _add(group, "--hostfile", "a line for each: HOST slots=8", "FILE", type=values.path)
    _add(group, "--ssh-port", "port of every sshd", "P", type=values.port)
    _add(group, "--ssh-user", "user on every host", "NAME")
    several: Mapping[str, Any] = {"action": "append"}
    of_ssh = "option of ssh, as ssh -o; repeatable"
    _add(group, "--ssh-option", of_ssh, "K=V", type=values.ssh_option, **several)
    _add(group, "-x --export", "variable to pass on", "NAME[=V]", **several)
    _add(group, "--env-file", "lines NAME=value", "FILE", type=values.path, **several)
    _add(group, "--remote-python", "Python on the other hosts (as here)", "PATH")
    _add(group, "--remote-dir", "working directory on the other hosts (as here)", "PATH")
    group = made.add_argument_group("real nodes, where each runs hccl-launch")
    _add(group, "--node-rank", "number of this node, from 0", "I", type=values.count)
    _add(group, "--master-addr", "node 0, as the other nodes reach it", "HOST")
    store = f"port of the ranks' store there; hccl-launch takes P + 1 ({DEFAULT_MASTER_PORT})"
    _add(group, "--master-port", store, "P", type=values.port)
    endpoint = "instead of both: nodes are numbered in order of arrival"
    _add(group, "--rdzv-endpoint", endpoint, "HOST:P")
    _add(group, "--rdzv-backend", argparse.SUPPRESS, "X")
    _add(group, "--rdzv-id", "name of the job, the same on all nodes", "ID")
    _add(group, "--local-addr", argparse.SUPPRESS, "X")
    _add(group, "--standalone", "this machine alone")
    limit = "seconds within which all nodes must connect (300)"
    _add(group, "--connect-timeout", limit, "S", type=values.seconds, default=300.0)


def _add_rest(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("before the job")
    _add(group, "--check", "only check the nodes and their network")
    _add(group, "--dry-run", "only print where and how each rank runs")
    binds: Mapping[str, Any] = {"choices": [each.value for each in Bind], "default": "none"}
    group.add_argument("--bind", help="which cores a rank gets (none: all)", **binds)
    _add(group, "--print-sbatch", "only print a batch script for Slurm")
    _add(group, "--print-k8s", "only print a manifest for Kubernetes")
    group = made.add_argument_group("output of the ranks")
    prefix = "[host:rank] before each line (auto: if there are several ranks)"
    group.add_argument("--prefix", choices=("auto", "always", "never"), default="auto", help=prefix)
    _add(group, "--log-dir", "also keep the output in DIR/attempt_0/rank_3.log", "DIR")
    streams: Mapping[str, Any] = {"type": values.streams, "default": "0"}
    _add(group, "-r --redirects", "1, 2, 3: only in the log", "S", **streams)
    _add(group, "-t --tee", "1, 2, 3: printed, and in the log", "S", **streams)
    shown: Mapping[str, Any] = {"type": values.local_ranks, "default": ""}
    _add(group, "--local-ranks-filter", "print only these local ranks", "I,J", **shown)
    group = made.add_argument_group("failures")
    again = "how often all ranks start again (0)"
    _add(group, "--max-restarts", again, "N", type=values.count, default=0)
    fewest = "when a rank fails, the others continue while N are left (all)"
    _add(group, "--min-ranks", fewest, "N", type=values.count, default=0)
    grace = "seconds from SIGTERM to SIGKILL of a rank that has to end (30)"
    _add(group, "--shutdown-timeout", grace, "S", type=values.seconds, default=30.0)


def _add(
    group: "argparse._ActionsContainer",
    names: str,
    text: str = argparse.SUPPRESS,
    metavar: str = "",
    **how: Any,
) -> None:
    """Add an option; without a metavar it is a switch.

    torchrun's spelling with underscores works too, but is not in the help.
    """
    if metavar:
        how = {"metavar": metavar, "type": values.text, **how}
    else:
        how["action"] = "store_true"
    action = group.add_argument(*names.split(), help=text, **how)
    for name in names.split():
        if "-" in name[2:]:
            group._option_string_actions["--" + name[2:].replace("-", "_")] = action


class _Parser(Parser):
    """Raises UsageError for a wrong command line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removeprefix('argument ')} (see --help)")


class _Refused(argparse.Action):
    """Rejects an option and names the alternative."""

    def __call__(self, *_: object) -> None:
        raise UsageError(f"{self.option_strings[0]}: {_REFUSED[self.option_strings[0]]}")


class _Version(argparse.Action):
    """Reads the version only on request: reading it doubles the start-up time."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"hccl-py {version_of(PACKAGE)}")
        parser.exit()
