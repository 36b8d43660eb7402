"""What the agent of a host runs."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hccl_py.launcher.job.layout import Attempt, Slot, rank_environment
from hccl_py.launcher.output.options import OutputOptions
from hccl_py.launcher.placement.accelerators import framework_variables
from hccl_py.launcher.placement.binding import Bind

WORKER = str(Path(__file__).parents[1] / "worker.py")
"""What a Python rank begins with."""


class Program(NamedTuple):
    """What to run on this host.

    Attributes:
        command: of every rank.
        environment: of every rank, before its own variables.
        slots: for the ranks, in their order.
        emulates_nodes: whether this host plays several nodes.
        stop_s: between SIGTERM and SIGKILL.
        folder: for records of exceptions; owner-only.
        bind: which cores each rank gets.
        output: where the lines of ranks go.
        is_alone: the job is a single rank, which gets this terminal itself.
        has_stdin: the standard input of this process is the user's, for rank 0.
        has_user: rank 0 may ask the user something: its prompts are shown at once.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    slots: tuple[Slot, ...]
    emulates_nodes: bool
    stop_s: float
    folder: Path
    bind: Bind
    output: OutputOptions
    is_alone: bool = False
    has_stdin: bool = True
    has_user: bool = False


def rank_command(words: Sequence[str], is_python: bool) -> tuple[str, ...]:
    """Return the command of a rank for a program, a script, or `-m` and a module, of the user."""
    return (sys.executable, WORKER, *words) if is_python else tuple(words)


def rank_variables(program: Program, attempt: Attempt, index: int) -> dict[str, str]:
    """Return what the `index`-th rank of an agent finds on top of the program's environment."""
    own = rank_environment(attempt, index)
    if program.emulates_nodes:
        own["HCCL_NODE_ID"] = f"emulated-node-{attempt.slots[index].node}"
    if "PYTHONUNBUFFERED" not in program.environment:
        # A pipe would hold lines back until a buffer is full.
        own["PYTHONUNBUFFERED"] = "1"
    for name in ("HCCL_REPLACE", "HCCL_HABANA_SHIM"):
        if name in program.environment:
            own[name] = program.environment[name]  # for --dry-run to show
    return {**own, **framework_variables(program.environment)}
