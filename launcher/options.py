"""The command line: torchrun's options under torchrun's names, and more; checked, without torch."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from hccl_py.launcher.output.options import OutputOptions, OutputWords
from hccl_py.launcher.placement.binding import Bind

if TYPE_CHECKING:
    from hccl_py.launcher.hosts.options import HostOptions

_ABOUT = """\
  hccl-launch --nproc 8 train.py --epochs 3
      8 ranks on this machine
  hccl-launch --nnodes 2 --nproc 8 train.py
      16 ranks as on 2 nodes of 8, emulated on this machine: ranks of different nodes share no
      memory and talk TCP
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
was killed; 71 a node was lost; 78 preflight found errors; 126 the program cannot run; 128 + the
signal that ended the job"""
DEFAULT_MASTER_PORT = 29500
CONTROL_PORT_OFFSET = 1
"""The head listens beside the ranks' store, so that one option gives both ports."""
_ELASTIC_FLAGS = ("--virtual-local-rank",)
_ELASTIC = (
    *("--rdzv-conf", "--role", "--event-log-handler", "--logs-specs", "--numa-binding"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters", "--signals-to-handle"),
)
# Ends are noticed at once, and ranks are programs.
_WITHOUT_EFFECT = ("--monitor-interval", "--start-method")
MAX_PORT = 65535
_MOST_S = 1_000_000_000
_OVER_SSH = (
    "ssh_port",
    "ssh_user",
    "ssh_option",
    "export",
    "env_file",
    "remote_python",
    "remote_dir",
)
_HELP_COLUMN, _HELP_WIDTH = 32, 100


class UsageError(Exception):
    """The command line cannot be carried out; the message says why, in one line."""


class Options(NamedTuple):
    """A checked command line.

    Attributes:
        num_nodes: of the job; the largest number where it may change.
        nodes_given: whether the user gave that number.
        ranks_per_node: of this node.
        standalone: all nodes are this machine, whatever the environment says.
        node_rank: None where it was not given.
        head: host and port of the head; None where they were not given.
        master_port: of the ranks' store; 0 where it was not given.
        job_id: the same on all nodes; empty where it was not given.
        by_arrival: nodes get their numbers in the order in which they come.
        elastic: torch.distributed.elastic runs the job.
        remote: None without --hosts and --hostfile.
        bind: which cores each rank gets.
        output: where the lines of ranks go.
        checks: only check the nodes.
        dry_run: only print what would run.
        print_sbatch, print_k8s: only print what starts the job there.
        own_words: the command line before the program.
        program: as the ranks run it: a script, `-m` and a module, or a program.
        is_python: whether the program is one.
    """

    num_nodes: int
    nodes_given: bool
    ranks_per_node: int
    standalone: bool
    node_rank: int | None
    head: tuple[str, int] | None
    master_port: int
    job_id: str
    by_arrival: bool
    elastic: bool
    max_restarts: int
    stop_s: float
    connect_timeout_s: float
    remote: "HostOptions | None"
    bind: Bind
    output: OutputWords
    checks: bool
    dry_run: bool
    print_sbatch: bool
    print_k8s: bool
    own_words: tuple[str, ...]
    program: tuple[str, ...]
    is_python: bool


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Read and check the command line; raise UsageError, or SystemExit as argparse does."""
    made = parser()
    made.set_defaults(**_from_environment(made, environ))
    try:
        args = made.parse_args(argv)
    except UsageError:
        if "--check" not in argv:
            raise
        args = made.parse_args([*argv, sys.executable])  # a check needs no program
    fewest, most = _nodes(args.nnodes or "1")
    ranks = _ranks_per_node(args, most)
    _check(args)
    backend = args.rdzv_backend or "static"
    by_arrival = bool(args.rdzv_endpoint) and args.node_rank is None
    elastic = (
        fewest < most
        or backend not in ("static", "c10d")
        or any(getattr(args, _dest(name)) for name in (*_ELASTIC, *_ELASTIC_FLAGS))
    )
    starts = not (args.print_sbatch or args.print_k8s)  # which refuse such a job on their own
    if starts and fewest < most and not (args.rdzv_endpoint or args.standalone):
        raise UsageError(
            f"--nnodes {args.nnodes} needs --rdzv-endpoint HOST:PORT, the same on every node: one "
            "that stays"
        )
    if not args.print_k8s:  # its program is in the image
        _check_program(args)
    if args.use_mpi or args.use_deepspeed:
        name = "--use_mpi" if args.use_mpi else "--use_deepspeed"
        print(f"hccl-launch: {name}: hccl-launch starts the ranks itself", file=sys.stderr)
    return Options(
        num_nodes=most,
        nodes_given=args.nnodes is not None,
        ranks_per_node=ranks,
        standalone=args.standalone,
        node_rank=args.node_rank,
        head=None if args.standalone else _head(args),
        master_port=args.master_port or 0,
        job_id=args.rdzv_id or "",
        by_arrival=by_arrival,
        elastic=elastic,
        max_restarts=args.max_restarts,
        stop_s=args.shutdown_timeout,
        connect_timeout_s=args.connect_timeout,
        remote=_remote(args, environ) if args.hosts or args.hostfile else None,
        bind=Bind(args.bind),
        output=_output(args),
        checks=args.check,
        dry_run=args.dry_run,
        print_sbatch=args.print_sbatch,
        print_k8s=args.print_k8s,
        own_words=tuple(argv[: len(argv) - 1 - len(args.arguments)]),
        program=_program(args),
        is_python=not args.no_python,
    )


def _from_environment(made: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that stand in variables, which torchrun reads too."""
    found: dict[str, Any] = {}
    for action in made._actions:
        name = f"PET_{action.dest.upper()}"
        text = environ.get(name)
        if not text:
            continue
        if type(action) is argparse._StoreAction and action.option_strings:
            found[action.dest] = text
        elif isinstance(action, argparse._StoreTrueAction):
            if text not in ("0", "1"):
                raise UsageError(f"{name}: expected 0 or 1, got {text!r}")
            found[action.dest] = text == "1"
    return found


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
    size = made.add_argument_group("size of the job")
    _add(size, "--nnodes", metavar="N", help="nodes, or MIN:MAX (1)")
    _add(
        size,
        "--nproc-per-node",
        "--nproc",
        metavar="N",
        help="ranks on each node; auto and cpu: one for each core; gpu (1)",
    )
    _add(size, "--world-size", type=int, metavar="N", help="ranks of all nodes together")
    # Of gaudi_spawn.py: which program starts the ranks. This one does.
    for name in ("--use-mpi", "--use-deepspeed"):
        _add(size, name, action="store_true", help=argparse.SUPPRESS)
    program = made.add_argument_group("the program")
    _add(program, "-m", "--module", action="store_true", help="it is a module, as python -m")
    _add(program, "--no-python", action="store_true", help="it is no Python script")
    _add(program, "--run-path", action="store_true", help=argparse.SUPPRESS)
    program.add_argument("script", help="script.py, module or program")
    program.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    program._group_actions[-1].required = False  # argparse says otherwise of such an argument
    hosts = made.add_argument_group("other hosts, over ssh")
    _add(hosts, "--hosts", metavar="A:8,B:8", help="hosts and their ranks")
    _add(hosts, "--hostfile", type=Path, metavar="FILE", help="a line for each: HOST slots=8")
    _add(hosts, "--ssh-port", type=int, metavar="P", help="of every sshd")
    _add(hosts, "--ssh-user", metavar="NAME", help="on every host")
    _add(hosts, "--ssh-option", action="append", metavar="K=V", help="as ssh -o; repeatable")
    _add(hosts, "-x", "--export", action="append", metavar="NAME[=V]", help="variable to pass on")
    _add(hosts, "--env-file", type=Path, action="append", metavar="FILE", help="lines NAME=value")
    _add(hosts, "--remote-python", metavar="PATH", help="the Python there (the one here)")
    _add(hosts, "--remote-dir", metavar="PATH", help="working directory there (the one here)")
    where = made.add_argument_group("real nodes, where each runs hccl-launch")
    _add(where, "--node-rank", type=int, metavar="I", help="number of this node, from 0")
    _add(where, "--master-addr", metavar="HOST", help="node 0, as the others reach it")
    _add(
        where,
        "--master-port",
        type=int,
        metavar="P",
        help=f"port of the ranks' store there; hccl-launch takes P + 1 ({DEFAULT_MASTER_PORT})",
    )
    _add(where, "--rdzv-endpoint", metavar="HOST:P", help="instead: numbers in order of arrival")
    _add(where, "--rdzv-backend", metavar="NAME", help="c10d: as --rdzv-endpoint says")
    _add(where, "--rdzv-id", metavar="ID", help="name of the job, the same on all nodes")
    _add(where, "--local-addr", help=argparse.SUPPRESS)
    _add(where, "--standalone", action="store_true", help="this machine alone")
    _add(
        where,
        "--connect-timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds that all nodes have to come (300)",
    )
    look = made.add_argument_group("before the job")
    _add(look, "--check", action="store_true", help="only check the nodes and their network")
    _add(look, "--dry-run", action="store_true", help="only print where and how each rank runs")
    _add(
        look,
        "--bind",
        choices=[each.value for each in Bind],
        default="none",
        help="which cores a rank gets (none: all)",
    )
    _add(look, "--print-sbatch", action="store_true", help="only print a batch script for Slurm")
    _add(look, "--print-k8s", action="store_true", help="only print a manifest for Kubernetes")
    output = made.add_argument_group("output of the ranks")
    _add(
        output,
        "--prefix",
        choices=("auto", "always", "never"),
        default="auto",
        help="[host:rank] before each line (auto: if there are several ranks)",
    )
    _add(output, "--log-dir", metavar="DIR", help="keep it in DIR/attempt_0/rank_3.log too")
    _add(output, "-r", "--redirects", default="0", metavar="S", help="1, 2, 3: only in the log")
    _add(output, "-t", "--tee", default="0", metavar="S", help="1, 2, 3: printed, and in the log")
    _add(output, "--local-ranks-filter", default="", metavar="I,J", help="print only these")
    failures = made.add_argument_group("failures")
    _add(
        failures,
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="how often all ranks start again (0)",
    )
    _add(
        failures,
        "--shutdown-timeout",
        type=float,
        default=3.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL of a rank that has to end (3)",
    )
    for name in (*_ELASTIC, *_WITHOUT_EFFECT):
        _add(made, *name.split("/"), help=argparse.SUPPRESS)
    for name in _ELASTIC_FLAGS:
        _add(made, name, action="store_true", help=argparse.SUPPRESS)
    return made


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


class _Version(argparse.Action):
    """Reads the version only when it is asked for: that takes as long as everything else."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: object) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"hccl-py {version('hccl-py')}")
        parser.exit()


def _dest(name: str) -> str:
    return name.rpartition("--")[2].replace("-", "_")


def _check(args: argparse.Namespace) -> None:
    if args.master_port is not None and not 0 < args.master_port <= MAX_PORT:
        raise UsageError(f"--master-port: expected 1 to {MAX_PORT}, got {args.master_port}")
    for name, value in vars(args).items():
        option = name.replace("_", "-")
        # As of "$HOSTS" in a shell that has no such variable: the job would run without the option.
        if value == "" and name not in ("script", "local_ranks_filter"):
            raise UsageError(f"--{option}: expected a value, got ''")
        if name in ("max_restarts", "shutdown_timeout", "connect_timeout") and not (
            0 <= value <= _MOST_S  # which no number is not either
        ):
            raise UsageError(f"--{option}: expected 0 to {_MOST_S}, got {value:g}")
        if name in _OVER_SSH and value and not (args.hosts or args.hostfile):
            raise UsageError(f"--{option} needs --hosts or --hostfile")
    _, most = _nodes(args.nnodes or "1")
    if args.node_rank is not None and not 0 <= args.node_rank < most:
        raise UsageError(
            f"--node-rank: expected 0 to {most - 1} of --nnodes {most}, got {args.node_rank}"
        )


def _head(args: argparse.Namespace) -> tuple[str, int] | None:
    if args.rdzv_backend == "c10d" and not args.rdzv_endpoint:
        raise UsageError("--rdzv-backend c10d needs --rdzv-endpoint HOST:PORT, the same everywhere")
    if args.rdzv_endpoint:
        host, colon, port = args.rdzv_endpoint.rpartition(":")
        if not colon:
            host, port = args.rdzv_endpoint, str(DEFAULT_MASTER_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or not 0 < int(port) <= MAX_PORT or not host:
            raise UsageError(f"--rdzv-endpoint: expected HOST:PORT, got {args.rdzv_endpoint!r}")
        return host, int(port)
    if args.master_addr is None and args.node_rank is None:
        return None
    port = (args.master_port or DEFAULT_MASTER_PORT) + CONTROL_PORT_OFFSET
    return args.master_addr or "127.0.0.1", port


def _output(args: argparse.Namespace) -> OutputWords:
    words = OutputWords(
        args.prefix, args.log_dir, args.redirects, args.tee, args.local_ranks_filter
    )
    try:
        OutputOptions.of(words)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return words


def _remote(args: argparse.Namespace, environ: Mapping[str, str]) -> "HostOptions":
    # A node that is started by hand imports nothing of it: a thousand start in some seconds.
    from hccl_py.launcher.hosts.environment import select
    from hccl_py.launcher.hosts.errors import HostsError
    from hccl_py.launcher.hosts.host_list import choose, parse_hosts, read_hostfile
    from hccl_py.launcher.hosts.options import HostOptions
    from hccl_py.launcher.hosts.ssh_options import SshOptions

    given = {name: getattr(args, name) for name in ("node_rank", "master_addr", "rdzv_endpoint")}
    for name, value in given.items():
        if value is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--hosts starts every node itself: leave out --{option}")
    most = None if args.nnodes is None else _nodes(args.nnodes)[1]
    ranks = None if args.nproc_per_node is None else _ranks(args.nproc_per_node)
    try:
        if args.hosts and args.hostfile:
            raise UsageError("--hosts and --hostfile exclude each other")
        if args.hosts:
            listed = parse_hosts(args.hosts, ranks)
        else:
            listed = read_hostfile(args.hostfile, ranks)
        return HostOptions(
            hosts=choose(listed, num_nodes=most, ranks_per_node=ranks, world_size=args.world_size),
            ssh=SshOptions(args.ssh_port, args.ssh_user, tuple(args.ssh_option or ())),
            environment=select(environ, args.export or (), args.env_file or ()),
            python=args.remote_python or sys.executable,
            directory=args.remote_dir or _working_directory(),
        )
    except HostsError as error:
        raise UsageError(str(error)) from error


def _nodes(text: str) -> tuple[int, int]:
    parts = text.split(":")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--nnodes: expected a number or MIN:MAX, got {text!r}")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 0 < fewest <= most:
        raise UsageError(f"--nnodes: expected 1 or more (MIN <= MAX), got {text!r}")
    return fewest, most


def _ranks(text: str) -> int:
    if text in ("auto", "cpu"):
        return len(os.sched_getaffinity(0))
    if text in ("gpu", "xpu"):
        return _devices(text)
    if not text.isdecimal():
        raise UsageError(
            f"--nproc-per-node: expected a number, or cpu, gpu, xpu or auto where this machine "
            f"has such, got {text!r}"
        )
    if int(text) < 1:
        raise UsageError(f"--nproc-per-node: expected 1 or more, got {text!r}")
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    if int(text) > most:
        raise UsageError(f"--nproc-per-node: Linux runs {most} processes here, got {text}")
    return int(text)


def _ranks_per_node(args: argparse.Namespace, num_nodes: int) -> int:
    if args.world_size is None or args.hosts or args.hostfile:
        return _ranks(args.nproc_per_node or "1")
    each = int(args.world_size) // num_nodes
    if each * num_nodes != args.world_size or each < 1:
        raise UsageError(
            f"--world-size: expected a multiple of --nnodes {num_nodes}, got {args.world_size}"
        )
    if args.nproc_per_node is not None and _ranks(args.nproc_per_node) != each:
        raise UsageError(
            f"--world-size {args.world_size} on {num_nodes} nodes is {each} ranks on each, "
            f"--nproc-per-node says {args.nproc_per_node}"
        )
    return each


def _devices(kind: str) -> int:
    import torch

    devices = torch.cuda if kind == "gpu" else torch.xpu
    count = int(devices.device_count())
    if not count:
        raise UsageError(f"--nproc-per-node: torch finds no {kind} on this machine")
    return count


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory is gone ({error.strerror}): change into another one"
        ) from error


def _check_program(args: argparse.Namespace) -> None:
    name = args.script
    if args.module and args.no_python:
        raise UsageError("-m and --no-python exclude each other")
    if args.module:
        found = (
            PathFinder.find_spec(name.partition(".")[0], [_working_directory(), *sys.path])
            is not None
        )
    elif args.no_python:
        from shutil import which  # it imports every kind of archive

        found = which(name) is not None
    else:
        found = Path(name).exists() and not (
            Path(name).is_dir() and not Path(name, "__main__.py").exists()
        )
    if not found:
        what = "module" if args.module else "program" if args.no_python else "script"
        raise UsageError(f"{what} not found: {name}")


def _program(args: argparse.Namespace) -> tuple[str, ...]:
    return (*(["-m"] if args.module else []), args.script, *args.arguments)
