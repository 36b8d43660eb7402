"""What the agent of a host runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hccl_py.launcher.job.layout import Slot


@dataclass(frozen=True)
class Program:
    """What to run on this host.

    Attributes:
        command: of every rank.
        environment: of every rank, before its own variables.
        slots: for the ranks, in their order.
        emulates_nodes: whether this host plays several nodes.
        stop_s: between SIGTERM and SIGKILL.
        folder: for records of exceptions; owner-only.
    """

    command: tuple[str, ...]
    environment: Mapping[str, str]
    slots: tuple[Slot, ...]
    emulates_nodes: bool
    stop_s: float
    folder: Path
