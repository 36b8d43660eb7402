"""The settings of a part of a job: ports, this host's program, the job's settings."""

import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hccl_py.launcher.command_line.values import check_number_here
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.job.layout import JobSettings, RankProgram, Slot, rank_command
from hccl_py.launcher.machine.open_files import allow_ranks
from hccl_py.launcher.options import DEFAULT_MASTER_PORT, JobOptions
from hccl_py.launcher.output.rank_output import check_folder
from hccl_py.launcher.own_lines import say
from hccl_py.transport.errors import InvalidArgumentError
from hccl_py.transport.network.interfaces import address_family, describe_target
from hccl_py.transport.network.secret import read_secret, weakness


def check_secret() -> None:
    """Reject an empty secret, and warn of one that can be guessed."""
    try:
        problem = weakness(read_secret(os.environ))
    except InvalidArgumentError as error:
        raise UsageError(str(error)) from error
    if problem:
        say(f"warning: {problem}")


def slots_of(options: JobOptions, nodes: Sequence[int]) -> tuple[Slot, ...]:
    """Return the slots of nodes with equal numbers of ranks."""
    check_number_here(len(nodes) * options.ranks_per_node, "--nnodes times --nproc-per-node")
    return tuple(Slot(node, rank) for node in nodes for rank in range(options.ranks_per_node))


def program_of(options: JobOptions, folder: Path, slots: Sequence[Slot]) -> RankProgram:
    """Return this host's program; UsageError: too many ranks, or no log files possible."""
    program = planned_program(options, folder, slots)
    check_folder(program.output.log_dir)
    return program


def planned_program(options: JobOptions, folder: Path, slots: Sequence[Slot]) -> RankProgram:
    """Return the same without creating anything."""
    allow_ranks(len(slots))
    return RankProgram(
        command=rank_command(options.program, options.is_python),
        environment=dict(os.environ),
        slots=tuple(slots),
        emulates_nodes=len({slot.node for slot in slots}) > 1,
        stop_s=options.stop_s,
        folder=folder,
        bind=options.bind,
        output=options.output,
        has_user=has_user(),
    )


def has_user() -> bool:
    """Return whether a user or program may answer rank 0's prompts."""
    try:
        return os.isatty(0) or not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:
        return False


def settings_of(options: JobOptions, hosts: tuple[str, ...], address: str) -> JobSettings:
    """Return the coordinator's settings; `address` is for the other nodes."""
    anywhere = options.coordinator is None or options.by_arrival
    return JobSettings(
        hosts=hosts,
        address=address,
        connect_timeout_s=options.connect_timeout_s,
        stop_s=options.stop_s,
        only_checks=options.checks,
        stall_s=stall_s(),
        job_id=options.job_id or f"job-{os.urandom(4).hex()}",
        max_restarts=options.max_restarts,
        min_ranks=options.min_ranks,
        master_addr="" if options.coordinator is None else options.coordinator[0],
        master_port=options.master_port or (0 if anywhere else DEFAULT_MASTER_PORT),
    )


def stall_s() -> float:
    """Return after how long a stalled rank is reported; the ranks read this variable too."""
    from hccl_py.launcher.progress.job_progress import LEAST_STALL_S, STALL_VARIABLE

    text = os.environ.get(STALL_VARIABLE) or "30"
    with suppress(ValueError):
        seconds = float(text)
        if seconds == 0 or LEAST_STALL_S <= seconds < float("inf"):
            return seconds
    raise UsageError(
        f"{STALL_VARIABLE}: expected {LEAST_STALL_S:g} or more seconds, 0 for never, got {text!r}"
    )


def bind(address: str, port: int) -> socket.socket:
    """Bind a TCP socket, or raise OSError."""
    bound = socket.socket(address_family(address))
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def check_free(address: str, port: int) -> None:
    """Raise UsageError if the store's port is taken, before rank 0 would find it."""
    try:
        bind(address, port).close()
    except OSError as error:
        where = describe_target((address, port))
        raise UsageError(
            f"rank 0's store cannot listen at {where}: {error.strerror}; "
            "choose another --master-port"
        ) from error
