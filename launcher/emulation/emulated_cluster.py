"""The record that the options of a job hold of `--emulate FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class EmulatedCluster(NamedTuple):
    """A file that was read and fits the other options."""

    path: Path
    num_nodes: int
    ranks_per_node: int
