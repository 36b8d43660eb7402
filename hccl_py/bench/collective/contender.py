"""The interface of a contender, the measured implementation.

A contender does not run the collective. It returns the call bound to its buffers, so that the clock
times only what a user would write.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from hccl_py.bench.collective.oracle import Call

Timed = Callable[[], object]
"""A call that blocks until this rank's part is done."""

Zeros = Callable[[int, str], Any]
"""Makes a tensor of zeros, or an array without torch: number of elements, element type."""


def has_torch() -> bool:
    """Return whether torch is installed; does not import it."""
    return find_spec("torch") is not None


@dataclass(frozen=True)
class Endpoint:
    """Where a contender's ranks connect."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    timeout_s: float


class Contender(Protocol):
    """The collectives over one implementation; buffers are contiguous and one-dimensional.

    Attributes:
        zeros: makes the buffers.
        compression: name of the compression of large sums between nodes; empty: none.
    """

    zeros: Zeros
    compression: str

    def bind(self, call: Call, input: Any, output: Any) -> Timed:
        """Return the collective of `call`; in place, the buffers are the same or overlap.

        The ops send, recv and start_send move `input` to or from the root. start_send returns an
        object with `wait()`, or None. A barrier has no buffers.
        """

    def statistics(self) -> str | None:
        """Return the implementation's counters as text; None if it has none."""

    def close(self) -> None:
        """Leave the group."""


Open = Callable[[Endpoint], Contender]
"""Opens a contender in a rank process; blocks until all ranks are connected."""
