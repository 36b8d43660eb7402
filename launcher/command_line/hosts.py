"""The options of --hosts and --hostfile."""

import argparse
import sys
from collections.abc import Mapping

from hccl_py.launcher.command_line.values import nodes, ranks, working_directory
from hccl_py.launcher.hosts.environment import select
from hccl_py.launcher.hosts.host_list import choose, parse_hosts, read_hostfile
from hccl_py.launcher.hosts.options import HostOptions
from hccl_py.launcher.hosts.ssh_options import SshOptions
from hccl_py.launcher.usage_error import UsageError


def hosts(args: argparse.Namespace, environ: Mapping[str, str]) -> HostOptions:
    """Return the hosts, and how to reach them; raise UsageError."""
    given = {name: getattr(args, name) for name in ("node_rank", "master_addr", "rdzv_endpoint")}
    for name, value in given.items():
        if value is not None:
            option = name.replace("_", "-")
            raise UsageError(f"--hosts starts every node itself: leave out --{option}")
    most = None if args.nnodes is None else nodes(args.nnodes)[1]
    slots = None if args.nproc_per_node is None else ranks(args.nproc_per_node)
    if args.hosts and args.hostfile:
        raise UsageError("--hosts and --hostfile exclude each other")
    listed = parse_hosts(args.hosts, slots) if args.hosts else read_hostfile(args.hostfile, slots)
    return HostOptions(
        hosts=choose(listed, num_nodes=most, ranks_per_node=slots, world_size=args.world_size),
        ssh=SshOptions(args.ssh_port, args.ssh_user, tuple(args.ssh_option or ())),
        environment=select(environ, args.export or (), args.env_file or ()),
        python=args.remote_python or sys.executable,
        directory=args.remote_dir or working_directory(),
    )
