"""The interface of a contender, the measured implementation.

A contender's method does not run the collective: it returns the call, bound to its buffers, so
that nothing of the benchmark stands between the clock and what a user would write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from hccl_py.bench.collective.oracle import Call

Timed = Callable[[], object]
"""A call that blocks until this rank's part is done."""

Zeros = Callable[[int, str], Any]
"""Makes a tensor of zeros: number of elements, element type."""


@dataclass(frozen=True)
class Endpoint:
    """Where a contender's ranks find each other."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    timeout_s: float


class Contender(Protocol):
    """The collectives over one implementation; buffers are contiguous and one-dimensional.

    Attributes:
        zeros: makes its buffers.
        compression: of large sums between nodes; empty: none.
    """

    zeros: Zeros
    compression: str

    def bind(self, call: Call, input: Any, output: Any) -> Timed:
        """Return a collective as `call` has it; in place, `input` is or has `output`.

        The ops send, recv and start_send move `input` to or from the root; what start_send returns
        is to be waited for, unless it is None. A barrier has no buffers.
        """

    def statistics(self) -> str | None:
        """Say what the implementation counted, if it counts."""

    def close(self) -> None:
        """Leave the group."""


Open = Callable[[Endpoint], Contender]
"""Opens a contender in a rank process; blocks until all ranks are connected."""
