"""The job of `hccl-launch --emulate FILE`, with other options checked against the file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hccl_py.lab.emulation.cluster import read
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.options import EmulatedCluster
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.settings import EMULATED_NETWORK, NetworkSettings

if TYPE_CHECKING:
    from hccl_py.launcher.job.serve import StartOthers

IN_RANK = "hccl_py.lab.emulation.rank"
"""The module that a rank loads."""

_EXCLUDES = (
    *("hosts", "hostfile", "node_rank", "master_addr", "rdzv_endpoint"),
    *("check", "print_sbatch", "print_k8s"),
)


def emulated(args: argparse.Namespace, environ: Mapping[str, str]) -> EmulatedCluster:
    """Read the file; raise UsageError if it is wrong or another option does not fit it."""
    path = Path(args.emulate)
    for name in _EXCLUDES:
        if getattr(args, name) is not None and getattr(args, name) is not False:
            option = name.replace("_", "-")
            raise UsageError(f"--emulate: expected all nodes on this machine, without --{option}")
    try:
        cluster = read(path)
        nodes = cluster.num_nodes
        ranks = _ranks(args, path, nodes, cluster.ranks_per_node)
        cluster.check_ranks(nodes * ranks)
        # Checks the transport once, before every rank would do it.
        NetworkSettings.from_environment({**environ, EMULATED_NETWORK: IN_RANK})
    except InvalidArgumentError as error:
        raise UsageError(f"--emulate: {error}") from error
    if args.nnodes not in (None, str(nodes)):
        raise UsageError(f"--emulate: {path} has {nodes} nodes, --nnodes says {args.nnodes}")
    return EmulatedCluster(nodes, ranks, partial(_network, path.resolve(), ranks))


def _network(path: Path, ranks_per_node: int) -> StartOthers:
    # Imported only by a launcher that starts the network, not to check options.
    from hccl_py.lab.emulation.launch_network import emulated_network

    name = f"hccl-emulated-{os.urandom(16).hex()}"
    os.environ[EMULATED_NETWORK] = f"{IN_RANK}:{name}"
    return partial(emulated_network, path, ranks_per_node, name)


def _ranks(args: argparse.Namespace, path: Path, num_nodes: int, of_file: int | None) -> int:
    from hccl_py.launcher.command_line.values import ranks_per_node

    if of_file is None or args.nproc_per_node or args.world_size:
        given = ranks_per_node(args, num_nodes)
        if of_file not in (None, given):
            raise UsageError(
                f"--emulate: {path} has ranks_per_node = {of_file}, the command line says {given}"
            )
        return given
    return of_file
