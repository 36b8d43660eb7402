"""The entry: parses a command line into checked options."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hccl_py.launcher.command_line import values
from hccl_py.launcher.command_line.parser import needs_elastic, parser
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.job.layout import FOR_FRAMEWORKS
from hccl_py.launcher.options import EmulatedCluster, JobOptions
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.placement.binding import Bind

if TYPE_CHECKING:
    from hccl_py.launcher.hosts.options import HostOptions

EMULATION = "hccl_py.lab.emulation.launch"
"""Loaded by name: the launcher works without it."""
_SSH_TIMEOUT_S = 60.0


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> JobOptions:
    """Read and check the command line; raise UsageError, or SystemExit as argparse does."""
    args = _parsed(argv, environ)
    variables = dict(FOR_FRAMEWORKS[name] for name in FOR_FRAMEWORKS if getattr(args, name))
    environ = {**environ, **variables}
    emulates = _emulated(args, environ)
    if emulates is not None:
        fewest = most = emulates.num_nodes
        ranks = emulates.ranks_per_node
    else:
        fewest, most = values.nodes(args.nnodes or "1")
        ranks = values.ranks_per_node(args, most)
    values.check_options(args, most)
    # --print-sbatch and --print-k8s have their own error for an elastic job.
    starts = not (args.print_sbatch or args.print_k8s)
    if starts and fewest < most and not (args.rdzv_endpoint or args.standalone):
        raise UsageError(
            f"--nnodes {args.nnodes} needs --rdzv-endpoint HOST:PORT, the same on every node, on a "
            "node that stays"
        )
    if not args.print_k8s:  # its program is in the image
        values.check_program(args)
    if args.use_mpi or args.use_deepspeed:
        name = "--use_mpi" if args.use_mpi else "--use_deepspeed"
        say(f"{name}: hccl-launch starts the ranks itself")
    known_backend = args.rdzv_backend in (None, "", "static", "c10d")
    elastic = fewest < most or not known_backend or needs_elastic(args)
    if emulates is not None and elastic:
        raise UsageError("--emulate: expected a job of fixed size, without torchrun's own options")
    output = OutputOptions(
        args.prefix, args.log_dir, args.redirects, args.tee, args.local_ranks_filter
    )
    output.check()
    coordinator = None if args.standalone else values.coordinator(args, fewest)
    is_any_port = coordinator is not None and coordinator[1] == 0
    return JobOptions(
        num_nodes=most,
        nodes_given=args.nnodes is not None,
        ranks_per_node=ranks,
        standalone=args.standalone or emulates is not None,
        node_rank=args.node_rank,
        coordinator=coordinator,
        master_port=args.master_port or 0,
        job_id=args.rdzv_id or "",
        by_arrival=bool(args.rdzv_endpoint) and (args.node_rank is None or is_any_port),
        elastic=elastic,
        max_restarts=args.max_restarts,
        min_ranks=args.min_ranks,
        stop_s=args.shutdown_timeout,
        connect_timeout_s=args.connect_timeout,
        remote=_hosts(args, environ),
        emulates=emulates,
        variables=variables,
        bind=Bind(args.bind),
        output=output,
        checks=args.check,
        dry_run=args.dry_run,
        print_sbatch=args.print_sbatch,
        print_k8s=args.print_k8s,
        own_words=tuple(argv[: len(argv) - 1 - len(args.arguments)]),
        program=(*(["-m"] if args.module else []), args.script, *args.arguments),
        is_python=not args.no_python,
    )


def _parsed(argv: Sequence[str], environ: Mapping[str, str]) -> argparse.Namespace:
    made = parser()
    made.set_defaults(**_from_environment(made, environ))
    try:
        return made.read(argv)
    except UsageError:
        if "--check" not in argv:
            raise
        return made.read([*argv, sys.executable])  # a check needs no program


def _from_environment(made: argparse.ArgumentParser, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of environment variables, which torchrun reads too."""
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


def _emulated(args: argparse.Namespace, environ: Mapping[str, str]) -> EmulatedCluster | None:
    if args.emulate is None:
        return None
    try:
        emulation = import_module(EMULATION)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--emulate: expected an installation with hccl_py.lab, got {error}"
        ) from error
    emulated: EmulatedCluster = emulation.emulated(args, environ)
    return emulated


def _hosts(args: argparse.Namespace, environ: Mapping[str, str]) -> "HostOptions | None":
    if not (args.hosts or args.hostfile):
        return None
    # Nodes started by hand do not import this: a thousand may start within seconds.
    from hccl_py.launcher.hosts import environment, host_list
    from hccl_py.launcher.hosts.options import HostOptions, SshOptions

    for name in ("node_rank", "master_addr", "rdzv_endpoint"):
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--hosts starts every node itself: leave out --{option}")
    if args.hosts and args.hostfile:
        raise UsageError("--hosts and --hostfile exclude each other")
    slots = args.nproc_per_node
    if args.hosts:
        listed = host_list.parse_hosts(args.hosts, slots)
    else:
        listed = host_list.read_hostfile(args.hostfile, slots)
    timeout_s = min(_SSH_TIMEOUT_S, args.connect_timeout)
    return HostOptions(
        hosts=host_list.choose(
            listed,
            num_nodes=None if args.nnodes is None else values.nodes(args.nnodes)[1],
            ranks_per_node=slots,
            world_size=args.world_size,
        ),
        ssh=SshOptions(args.ssh_port, args.ssh_user, tuple(args.ssh_option or ()), timeout_s),
        environment=environment.select(environ, args.export or (), args.env_file or ()),
        python=args.remote_python or sys.executable,
        directory=args.remote_dir or values.working_directory(),
    )
