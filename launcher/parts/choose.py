"""The entry: from the command line to what this process runs."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hccl_py.launcher.options import Options, UsageError
from hccl_py.launcher.parts import meeting
from hccl_py.launcher.parts.settings import SECRET, check_free, program_of, settings_of
from hccl_py.schedulers.ports import free_port
from hccl_py.transport.network.interfaces import describe_target

# Their presence says that a scheduler started this process.
_SCHEDULER = ("SLURM_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_", "GROUP_RANK", "NODE_RANK")


def elastic(words: Sequence[str]) -> Callable[[], int]:
    """Return what runs a job whose size may change."""

    def body() -> int:
        from hccl_py.launcher.elastic import run

        return run.run(words)

    return body


def part(options: Options, folder: Path) -> Callable[[], int]:
    """Return what runs this part; raise UsageError where it is not known or cannot be run."""
    if options.remote is not None:
        from hccl_py.launcher.parts import over_ssh

        locations = over_ssh.locations(options.remote)
        if all(location.is_here for location in locations):
            return _local(replace(options, ranks_per_node=locations[0].host.slots), folder)
        return over_ssh.part(options, options.remote, locations, folder)
    if options.head is None:
        return _local(options, folder)
    if options.by_arrival:
        return meeting.by_arrival(options, folder)
    if options.node_rank is None:
        raise UsageError(
            f"--node-rank: expected 0 to {options.num_nodes - 1}, for this is one of "
            f"{options.num_nodes} nodes that meet at {describe_target(options.head)}"
        )
    node = meeting.other_node if options.node_rank else meeting.first_node
    return node(options, folder)


def _local(options: Options, folder: Path) -> Callable[[], int]:
    """All ranks are here, on emulated nodes where there are several."""
    nodes, ranks = options.num_nodes, options.ranks_per_node
    scheduler = next((name for name in os.environ if name.startswith(_SCHEDULER)), "")
    if nodes > 1 and scheduler:
        raise UsageError(
            f"{scheduler} is set, so this is one of {nodes} real nodes, but which one? Give "
            "--node-rank and --master-addr, or --standalone to emulate all nodes here"
        )
    if nodes > 1:
        each = "1 rank" if ranks == 1 else f"{ranks} ranks"
        _say(
            f"emulating {nodes} nodes of {each} on this machine (no --node-rank given); "
            "ranks of different nodes talk TCP"
        )
    # All ranks are on this machine, so one secret made here reaches them all. It travels in the
    # environment, which other users cannot read, never in an argument or a log.
    os.environ.setdefault(SECRET, os.urandom(32).hex())
    if options.master_port:
        check_free("127.0.0.1", options.master_port)
    program = program_of(options, folder, range(nodes))
    settings = settings_of(options, ("",), "")

    def body() -> int:
        from hccl_py.launcher.job import serve

        port = options.master_port or free_port("127.0.0.1")
        return serve.run(settings, [(0, program, "127.0.0.1", port)])

    return body


def _say(text: str) -> None:
    print(f"hccl-launch: {text}", file=sys.stderr, flush=True)
