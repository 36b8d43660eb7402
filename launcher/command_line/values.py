"""What the values of options may be; each function raises UsageError for any other."""

import argparse
import os
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from hccl_py.launcher.exit_codes import CANNOT_RUN, NOT_FOUND
from hccl_py.launcher.options import CONTROL_PORT_OFFSET, DEFAULT_MASTER_PORT, MAX_PORT
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.usage_error import UsageError

_MOST_S = 1_000_000_000
_LIMITED = (
    *("max_restarts", "min_ranks", "shutdown_timeout", "connect_timeout", "monitor_interval"),
)
_MOST_NODES = 1 << 16
_SSH_OPTION = re.compile(r"\w+[ =].+")
_OVER_SSH = (
    *("ssh_port", "ssh_user", "ssh_option", "export", "env_file"),
    *("remote_python", "remote_dir"),
)


def whole(text: str) -> int:
    """Read a whole number, for argparse."""
    if not re.fullmatch("[+-]?[0-9]+", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time, for argparse; `check_options` knows its limits."""
    try:
        return float(text.replace("_", "no digit"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected seconds, got {text!r}") from None


def check_options(args: argparse.Namespace, num_nodes: int) -> None:
    """Check the port, times, counts, the number of this node, and that no option is lost."""
    for port in ("master_port", "ssh_port"):
        value = getattr(args, port)
        if value is not None and not 0 < value <= MAX_PORT:
            option = port.replace("_", "-")
            raise UsageError(f"--{option}: expected 1 to {MAX_PORT}, got {value}")
    for name, value in vars(args).items():
        option = name.replace("_", "-")
        # As of "$HOSTS" in a shell that has no such variable: the job would run without the option.
        if value in ("", Path(), [Path()]) and name not in ("script", "local_ranks_filter"):
            raise UsageError(f"--{option}: expected a value, got ''")
        if name in _LIMITED and value is not None and not 0 <= value <= _MOST_S:  # nor nan
            raise UsageError(f"--{option}: expected 0 to {_MOST_S}, got {value:g}")
        if name == "ssh_option" and not all(map(_SSH_OPTION.fullmatch, value or ())):
            raise UsageError(f"--ssh-option: expected KEY=VALUE, got {', '.join(map(repr, value))}")
        if name in _OVER_SSH and value and not (args.hosts or args.hostfile):
            raise UsageError(f"--{option} needs --hosts or --hostfile")
    if args.node_rank is not None and not 0 <= args.node_rank < num_nodes:
        raise UsageError(
            f"--node-rank: expected 0 to {num_nodes - 1} of --nnodes {num_nodes}, "
            f"got {args.node_rank}"
        )


def coordinator(args: argparse.Namespace, fewest: int) -> tuple[str, int] | None:
    """Return host and port of the coordinator; None: no option gives them.

    Port 0 of --rdzv-endpoint is any free one, which only a single node can know.
    """
    if args.rdzv_backend == "c10d" and not args.rdzv_endpoint:
        raise UsageError("--rdzv-backend c10d needs --rdzv-endpoint HOST:PORT, the same everywhere")
    if args.rdzv_endpoint:
        host, colon, port = args.rdzv_endpoint.rpartition(":")
        if not colon:
            host, port = args.rdzv_endpoint, str(DEFAULT_MASTER_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or not 0 <= int(port) <= MAX_PORT or not host:
            raise UsageError(f"--rdzv-endpoint: expected HOST:PORT, got {args.rdzv_endpoint!r}")
        if int(port) == 0 and fewest > 1:
            raise UsageError(
                f"--rdzv-endpoint: expected a port that {fewest} nodes know, got "
                f"{args.rdzv_endpoint!r}"
            )
        return host, int(port)
    if args.master_addr is None and args.node_rank is None:
        return None
    port = (args.master_port or DEFAULT_MASTER_PORT) + CONTROL_PORT_OFFSET
    host = args.master_addr or "127.0.0.1"
    if host.count(":") == 1 or "]:" in host:
        raise UsageError(
            f"--master-addr: expected a name or an address, got {host!r}; "
            "the port stands in --master-port"
        )
    return host.removeprefix("[").removesuffix("]"), port


def output(args: argparse.Namespace) -> OutputOptions:
    """Return where the lines of ranks go."""
    found = OutputOptions(
        args.prefix, args.log_dir, args.redirects, args.tee, args.local_ranks_filter
    )
    found.check()
    return found


def nodes(text: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes."""
    parts = text.split(":")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(f"--nnodes: expected a number or MIN:MAX, got {text!r}")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 0 < fewest <= most <= _MOST_NODES:
        raise UsageError(f"--nnodes: expected 1 to {_MOST_NODES} (MIN <= MAX), got {text!r}")
    return fewest, most


def ranks(text: str) -> int:
    """Return how many ranks `--nproc-per-node` asks for on this machine."""
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
    check_number_here(int(text), "--nproc-per-node")
    return int(text)


def check_number_here(num_ranks: int, option: str) -> None:
    """Raise UsageError if this machine cannot have so many processes."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    if num_ranks > most:
        raise UsageError(
            f"{option}: expected at most the {most} that Linux runs here, got {num_ranks}"
        )


def ranks_per_node(args: argparse.Namespace, num_nodes: int) -> int:
    """Return how many ranks each node has; with --hosts, the list of hosts says it."""
    if args.world_size is None or args.hosts or args.hostfile:
        return ranks(args.nproc_per_node or "1")
    each = int(args.world_size) // num_nodes
    if each * num_nodes != args.world_size or each < 1:
        raise UsageError(
            f"--world-size: expected a multiple of --nnodes {num_nodes}, got {args.world_size}"
        )
    check_number_here(each, "--world-size")
    if args.nproc_per_node is not None and ranks(args.nproc_per_node) != each:
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


def working_directory() -> str:
    """Return the working directory, which may be gone."""
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
    if args.module:
        found = (
            PathFinder.find_spec(name.partition(".")[0], [working_directory(), *sys.path])
            is not None
        )
    elif args.no_python:
        _check_command(name)
        found = True
    else:
        found = Path(name).exists() and not (
            Path(name).is_dir() and not Path(name, "__main__.py").exists()
        )
    if not found:
        raise UsageError(f"{'module' if args.module else 'script'} not found: {name}")


def _check_command(name: str) -> None:
    """Check that the kernel finds a program as a shell does.

    As `shutil.which`, whose module imports every kind of archive.
    """
    folders = [""] if os.path.dirname(name) else os.get_exec_path()
    paths = [os.path.join(folder, name) for folder in folders]
    found = [path for path in paths if os.path.exists(path)]
    if not found:
        raise UsageError(f"program not found: {name}", NOT_FOUND)
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in found):
        what = "is a folder" if os.path.isdir(found[0]) else "may not be executed (chmod +x)"
        raise UsageError(f"program {found[0]} {what}", CANNOT_RUN)
