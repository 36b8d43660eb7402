"""What is measured: the interface of a contender, and the tables of those there are.

A contender's method does not run the collective: it returns the call, bound to its buffers, so
that nothing of the benchmark stands between the clock and what a user would write.
Another contender is one class and one entry of `BASELINES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

Timed = Callable[[], object]
"""A call that blocks until this rank's part is done."""

Zeros = Callable[[int, "torch.dtype"], "torch.Tensor"]
"""Makes a buffer of zeros: number of elements, type."""


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
    """

    zeros: Zeros

    def all_reduce(self, data: torch.Tensor, reduce_op: str) -> Timed:
        """Reduce `data` in place on every rank."""

    def broadcast(self, data: torch.Tensor, root: int) -> Timed:
        """Copy root's `data` into everyone's."""

    def reduce(self, data: torch.Tensor, root: int, reduce_op: str) -> Timed:
        """Reduce `data` in place on root."""

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

    def barrier(self) -> Timed:
        """Wait until every rank is here."""

    def statistics(self) -> str | None:
        """Say what the implementation counted, if it counts."""

    def close(self) -> None:
        """Leave the group."""


Open = Callable[[Endpoint], Contender]


# Imports stand inside: the command holds these functions, only ranks call them.
def _open_torch_hccl(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.torch_contender import TorchContender

    return TorchContender("hccl", endpoint)


def _open_communicator(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.communicator_contender import CommunicatorContender

    return CommunicatorContender(endpoint)


def _open_registered(open_contender: Open, endpoint: Endpoint) -> Contender:
    from hccl_py.memory.registered import empty

    contender = open_contender(endpoint)
    contender.zeros = lambda count, dtype: empty(count, dtype).zero_()
    return contender


def _open_gloo(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.torch_contender import TorchContender

    return TorchContender("gloo", endpoint)


APIS: dict[str, Open] = {"torch": _open_torch_hccl, "communicator": _open_communicator}
"""Ways to call hccl, by the value of --api."""

BASELINES: dict[str, Open] = {"gloo": _open_gloo}
"""What hccl can be compared with, by the value of --compare."""

REGISTERED: dict[str, Open] = {api: partial(_open_registered, APIS[api]) for api in APIS}
"""The same ways with buffers in registered memory."""
