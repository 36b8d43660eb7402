"""The entry: chooses the part of the job that this process runs."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hccl_py.installation import pip_install
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.options import JobOptions
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.output.rank_output import check_folder
from hccl_py.launcher.own_lines import say
from hccl_py.launcher.parts import several_nodes
from hccl_py.launcher.parts.settings import (
    check_free,
    check_secret,
    program_of,
    settings_of,
    slots_of,
)
from hccl_py.schedulers.ports import free_port
from hccl_py.schedulers.reader import read
from hccl_py.schedulers.scheduled import Scheduled, Task
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.secret import SECRET


def text(options: JobOptions) -> str:
    """Return the output of an option that starts nothing; empty without such an option."""
    if options.print_sbatch or options.print_k8s:
        from hccl_py.launcher.manifests import texts

        return texts.sbatch(options) if options.print_sbatch else texts.k8s(options)
    if options.dry_run:
        from hccl_py.launcher.parts import dry_run

        return dry_run.text(options, scheduler_of(options))
    return ""


def elastic_part(options: JobOptions, folder: Path, words: Sequence[str]) -> Callable[[], int]:
    """Return a function that runs a job whose size may change."""
    from hccl_py.launcher import elastic_job

    if find_spec("torch") is None:
        raise UsageError(
            "a job whose size may change, and torchrun's own options, need torch, which is not "
            f"installed: {pip_install('torch')}"
        )
    check_secret()
    elastic_job.check_options(options)
    check_folder(options.output.log_dir)
    if options.by_arrival and options.coordinator is not None:
        several_nodes.resolve(options.coordinator)
    return partial(elastic_job.run, options, folder, words)


def part(options: JobOptions, folder: Path, words: Sequence[str]) -> Callable[[], int]:
    """Return a function that runs this part; UsageError: it is not known or cannot run."""
    if options.remote is not None:
        from hccl_py.launcher.parts import over_ssh

        os.environ.update(options.remote.environment)
        check_secret()
        locations = over_ssh.locations(options.remote)
        if all(location.is_here for location in locations):
            return _local(options._replace(ranks_per_node=locations[0].host.slots), folder)
        return over_ssh.part(options, options.remote, locations, folder)
    check_secret()
    found = scheduler_of(options)
    if found is not None:
        from hccl_py.launcher.parts import scheduled

        if found.task is not Task.NONE:
            return scheduled.part(options, found, folder)
        scheduled.in_allocation(options, found, words)
    if options.coordinator is None:
        return _local(options, folder)
    if options.by_arrival:
        return several_nodes.by_arrival(options, folder)
    index = several_nodes.node_of(options)
    node = several_nodes.other_node if index else several_nodes.first_node
    return node(options, folder, slots_of(options, [index]))


def _local(options: JobOptions, folder: Path) -> Callable[[], int]:
    """Return a function that runs all ranks here, on emulated nodes if there are several."""
    nodes, ranks, cluster = options.num_nodes, options.ranks_per_node, options.emulates
    slots = slots_of(options, range(nodes))
    if nodes > 1 and cluster is None:
        each = "1 rank" if ranks == 1 else f"{ranks} ranks"
        say(
            f"emulating {nodes} nodes of {each} on this machine (no --node-rank given); "
            "ranks of different nodes talk TCP"
        )
    # All ranks are on this machine, so they can share a secret made here. It is passed in the
    # environment, which other users cannot read, never in an argument or a log.
    os.environ.setdefault(SECRET, os.urandom(32).hex())
    if options.master_port:
        check_free("127.0.0.1", options.master_port)
    network = None if cluster is None else cluster.network()
    program = program_of(options, folder, slots)
    is_alone = len(program.slots) == 1 and options.output == OutputOptions()
    program = program._replace(is_alone=is_alone)
    settings = settings_of(options, ("",), "")

    def body() -> int:
        from hccl_py.launcher.job import serve

        port = options.master_port or free_port("127.0.0.1")
        return serve.run(settings, [(0, program, "127.0.0.1", port)], start_others=network)

    return body


def _refuse_half_set(nodes: int) -> None:
    """Raise UsageError if a variable, even an empty one, refers to real nodes."""
    for name in ("MASTER_ADDR", "NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "PET_MASTER_ADDR"):
        value = os.environ.get(name)
        if value is not None and not value.startswith(("127.", "localhost")):
            raise UsageError(
                f"{name}={value} is set, but nothing says which of {nodes} nodes this is: give "
                "--node-rank and --master-addr, or --standalone to emulate all nodes here"
            )


def scheduler_of(options: JobOptions) -> Scheduled | None:
    """Return the scheduler's facts about this process, unless an option overrides them."""
    if options.standalone or options.by_arrival or options.remote is not None:
        return None
    try:
        found = read(os.environ)
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error
    if found is None and options.coordinator is None and options.num_nodes > 1:
        _refuse_half_set(options.num_nodes)
    if found is not None and found.task is Task.NONE and options.coordinator is not None:
        return None  # the options give the node's number
    return found
