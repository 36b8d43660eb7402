"""What is measured: the interface of a contender.

A contender's method does not run the collective: it returns the call, bound to its buffers, so
that nothing of the benchmark stands between the clock and what a user would write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

Timed = Callable[[], object]
"""A call that blocks until this rank's part is done."""

Zeros = Callable[[int, "torch.dtype"], "torch.Tensor"]
"""Makes a buffer of zeros: number of elements, type."""


@dataclass(frozen=True)
class Buffers:
    """A rank's input and output; in place they are one tensor, or one is a block of the other."""

    input: torch.Tensor
    output: torch.Tensor


@dataclass(frozen=True)
class Endpoint:
    """Where a contender's ranks meet."""

    rank: int
    world_size: int
    master_address: str
    master_port: int
    timeout_s: float


class Contender(Protocol):
    """The collectives over one implementation; buffers are contiguous one-dimensional tensors.

    Attributes:
        zeros: makes its buffers.
        compression: of large sums between nodes; empty: none.
    """

    zeros: Zeros
    compression: str

    def all_reduce(
        self, data: torch.Tensor, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """Reduce `data` on every rank, in place or into `output`."""

    def broadcast(self, data: torch.Tensor, root: int, output: torch.Tensor | None = None) -> Timed:
        """Copy root's `data` into everyone's, or into everyone's `output`."""

    def reduce(
        self, data: torch.Tensor, root: int, reduce_op: str, output: torch.Tensor | None = None
    ) -> Timed:
        """Reduce `data` on root, in place or into its `output`."""

    def all_gather(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """Fill `output` with every rank's `input`, in rank order."""

    def reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, reduce_op: str) -> Timed:
        """Fill `output` with this rank's block of the reduction of all inputs."""

    def all_to_all(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """Exchange blocks: mine for rank i becomes block `my rank` over there."""

    def gather(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """Fill root's `output` with every rank's `input`; the other ranks' is not used."""

    def scatter(self, output: torch.Tensor, input: torch.Tensor, root: int) -> Timed:
        """Fill `output` with this rank's block of root's `input`; the others' is not used."""

    def send_recv(self, output: torch.Tensor, input: torch.Tensor) -> Timed:
        """Send `input` to the next rank and receive `output` from the one before."""

    def send(self, data: torch.Tensor, peer: int) -> Timed:
        """Send `data` to a rank that receives it."""

    def recv(self, data: torch.Tensor, peer: int) -> Timed:
        """Receive `data` from a rank that sends it."""

    def barrier(self) -> Timed:
        """Wait until every rank is here."""

    def statistics(self) -> str | None:
        """Say what the implementation counted, if it counts."""

    def close(self) -> None:
        """Leave the group."""


Open = Callable[[Endpoint], Contender]
"""Opens a contender in a rank process; blocks until all ranks have met."""
