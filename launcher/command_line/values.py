"""The values of options: readers for argparse, and checks that raise UsageError."""

import argparse
import os
import re
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

from hccl_py.command_line import reader, whole
from hccl_py.launcher.exit_codes import CANNOT_RUN, NOT_FOUND, UsageError
from hccl_py.launcher.options import CONTROL_PORT_OFFSET, DEFAULT_MASTER_PORT, MAX_PORT
from hccl_py.launcher.output.options import parse_streams
from hccl_py.transport.network.system_calls import usable_cores

_MOST = 1_000_000_000
_MOST_NODES = 1 << 16
_SSH_OPTION = re.compile(r"\w+[ =].+")
_OVER_SSH = (
    *("ssh_port", "ssh_user", "ssh_option", "export", "env_file"),
    *("remote_python", "remote_dir"),
)

port = whole(1, MAX_PORT)
count = whole(0, _MOST)


def text(value: str) -> str:
    """Read a text, for argparse.

    An empty text, as from an unset "$HOSTS", is an error: the job would run without the option.
    """
    if not value:
        raise argparse.ArgumentTypeError("expected a value, got ''")
    return value


def path(value: str) -> Path:
    """Read a path, for argparse."""
    return Path(text(value))


def seconds(value: str) -> float:
    """Read a time, for argparse."""
    with suppress(ValueError):
        number = float(value.replace("_", "no digit"))
        if 0 <= number <= _MOST:  # false for nan
            return number
    raise argparse.ArgumentTypeError(f"expected 0 to {_MOST} seconds, got {value!r}")


def ssh_option(value: str) -> str:
    """Read a value of ssh's -o, for argparse."""
    if not _SSH_OPTION.fullmatch(value):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {value!r}")
    return value


@reader
def streams(value: str) -> str:
    """Check a value of --redirects or --tee, for argparse."""
    parse_streams(value)
    return value


def local_ranks(value: str) -> str:
    """Check a list of numbers, which may be empty, for argparse."""
    if value and not all(part.strip().isdecimal() for part in value.split(",")):
        raise argparse.ArgumentTypeError(f"expected numbers, such as 0,1, got {value!r}")
    return value


def ranks(value: str) -> int:
    """Read the number of ranks of `--nproc-per-node` on this machine, for argparse."""
    if value in ("auto", "cpu"):
        return len(usable_cores())
    if value in ("gpu", "xpu"):
        return _devices(value)
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(
            "expected 1 or more, or cpu, gpu, xpu or auto where this machine has such, got "
            f"{value!r}"
        )
    check_number_here(int(value), "--nproc-per-node")
    return int(value)


def check_options(args: argparse.Namespace, num_nodes: int) -> None:
    """Check the number of this node, and that no ssh option is unused."""
    for name in _OVER_SSH:
        if getattr(args, name) and not (args.hosts or args.hostfile):
            raise UsageError(f"--{name.replace('_', '-')} needs --hosts or --hostfile")
    if args.node_rank is not None and args.node_rank >= num_nodes:
        raise UsageError(
            f"--node-rank: expected 0 to {num_nodes - 1} of --nnodes {num_nodes}, "
            f"got {args.node_rank}"
        )


def coordinator(args: argparse.Namespace, fewest: int) -> tuple[str, int] | None:
    """Return host and port of the coordinator; None: no option gives them.

    Port 0 of --rdzv-endpoint means any free port, which only works for a single node.
    """
    if args.rdzv_backend == "c10d" and not args.rdzv_endpoint:
        raise UsageError("--rdzv-backend c10d needs --rdzv-endpoint HOST:PORT, the same everywhere")
    if args.rdzv_endpoint:
        host, colon, digits = args.rdzv_endpoint.rpartition(":")
        if not colon:
            host, digits = args.rdzv_endpoint, str(DEFAULT_MASTER_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not digits.isdecimal() or int(digits) > MAX_PORT or not host:
            raise UsageError(f"--rdzv-endpoint: expected HOST:PORT, got {args.rdzv_endpoint!r}")
        if int(digits) == 0 and fewest > 1:
            raise UsageError(
                f"--rdzv-endpoint: expected a port that {fewest} nodes know, got "
                f"{args.rdzv_endpoint!r}"
            )
        return host, int(digits)
    if args.master_addr is None and args.node_rank is None:
        return None
    above = (args.master_port or DEFAULT_MASTER_PORT) + CONTROL_PORT_OFFSET
    host = args.master_addr or "127.0.0.1"
    if host.count(":") == 1 or "]:" in host:
        raise UsageError(
            f"--master-addr: expected a name or an address, got {host!r}; "
            "the port stands in --master-port"
        )
    return host.removeprefix("[").removesuffix("]"), above


def nodes(given: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes."""
    parts = given.split(":")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--nnodes: expected a number or MIN:MAX, got {given!r}")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 0 < fewest <= most <= _MOST_NODES:
        raise UsageError(f"--nnodes: expected 1 to {_MOST_NODES} (MIN <= MAX), got {given!r}")
    return fewest, most


def check_number_here(num_ranks: int, option: str) -> None:
    """Raise UsageError if `num_ranks` exceeds this machine's limit of processes."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    if num_ranks > most:
        raise UsageError(
            f"{option}: expected at most the {most} that Linux runs here, got {num_ranks}"
        )


def ranks_per_node(args: argparse.Namespace, num_nodes: int) -> int:
    """Return the number of ranks per node; with --hosts, the list of hosts has it."""
    if args.world_size is None or args.hosts or args.hostfile:
        return int(args.nproc_per_node or 1)
    each = int(args.world_size) // num_nodes
    if each * num_nodes != args.world_size or each < 1:
        raise UsageError(
            f"--world-size: expected a multiple of --nnodes {num_nodes}, got {args.world_size}"
        )
    check_number_here(each, "--world-size")
    if args.nproc_per_node not in (None, each):
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
        raise argparse.ArgumentTypeError(f"torch finds no {kind} on this machine")
    return count


def working_directory() -> str:
    """Return the working directory; UsageError: it was deleted."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory is gone ({error.strerror}): change into another one"
        ) from error


def check_program(args: argparse.Namespace) -> None:
    """Check that the program is there."""
    name = args.script
    if args.module and args.no_python:
        raise UsageError("-m and --no-python exclude each other")
    if args.habana_shim and args.no_python:
        raise UsageError("--habana-shim needs a Python script: it starts in the ranks' Python")
    if args.no_python:
        _check_command(name)
    elif args.module:
        folders = [working_directory(), *sys.path]
        if PathFinder.find_spec(name.partition(".")[0], folders) is None:
            raise UsageError(f"module not found: {name}")
    elif not Path(name, "__main__.py" if Path(name).is_dir() else "").exists():
        raise UsageError(f"script not found: {name}")


def _check_command(name: str) -> None:
    """Check that the kernel finds a program as a shell does.

    Like `shutil.which`, whose module is slow to import.
    """
    folders = [""] if os.path.dirname(name) else os.get_exec_path()
    paths = [os.path.join(folder, name) for folder in folders]
    found = [path for path in paths if os.path.exists(path)]
    if not found:
        raise UsageError(f"program not found: {name}", NOT_FOUND)
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in found):
        what = "is a folder" if os.path.isdir(found[0]) else "may not be executed (chmod +x)"
        raise UsageError(f"program {found[0]} {what}", CANNOT_RUN)
