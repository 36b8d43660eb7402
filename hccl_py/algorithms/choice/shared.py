"""Rank 0's costs and rules, sent to all ranks as they connect, so that all choose alike."""

import json
import os
from collections.abc import Mapping
from typing import Literal, NamedTuple

from hccl_py.transport.errors import InvalidArgumentError

REPRODUCIBLE = "HCCL_REPRODUCIBLE"

Reproducible = bool | Literal["exact"]
"""Whether bits depend on the operands in rank order; or on their exact sum alone."""


class Shared(NamedTuple):
    """Settings of rank 0; the defaults are for a rank that is alone."""

    algorithms: str = ""  # the names of users' algorithms, for messages
    reproducible: Reproducible = False
    tuning: bytes = b""  # a file of `tuning.py`, without line breaks

    def packed(self) -> bytes:
        """Return the bytes for all ranks; only the tuning if there is nothing else."""
        if not self.algorithms and not self.reproducible:
            return self.tuning
        return json.dumps(self[:2]).encode() + b"\n" + self.tuning

    @classmethod
    def parse(cls, received: bytes) -> "Shared":
        """Parse rank 0's `packed` bytes."""
        first, newline, tuning = received.partition(b"\n")
        if not newline:
            return cls(tuning=received)
        algorithms, reproducible = json.loads(first)
        return cls(algorithms, reproducible, tuning)


def is_reproducible(environ: Mapping[str, str] = os.environ) -> Reproducible:
    """Return whether `HCCL_REPRODUCIBLE` requires the same bits for every layout, and how.

    Raise InvalidArgumentError for anything but 0, 1 and exact.
    """
    text = environ.get(REPRODUCIBLE) or "0"
    if text == "exact":
        return "exact"
    if text not in ("0", "1"):
        raise InvalidArgumentError(f"{REPRODUCIBLE}: expected 0, 1 or exact, got {text!r}")
    return text == "1"
