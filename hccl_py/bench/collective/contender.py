"""What is measured: the interface of a contender, and those there are, by name.

A contender's method does not run the collective: it returns the call, bound to its buffers, so
that nothing of the benchmark stands between the clock and what a user would write. An `Api` opens
one in a rank process, where alone torch is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hccl_py.algorithms.shared import REPRODUCIBLE
from hccl_py.algorithms.tuner import VARIABLE as ALGORITHM
from hccl_py.bench.collective.oracle import Call
from hccl_py.compression import VARIABLE as COMPRESSION

if TYPE_CHECKING:
    from hccl_py.bench.collective.options import Options

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

APIS = ("torch", "communicator")
"""Ways to call hccl, the values of --api."""

BASELINES = ("gloo",)
"""What hccl is compared with in the same processes, the values of --compare."""

COMPRESSIONS = ("bf16", "int8")


@dataclass(frozen=True)
class Api:
    """Opens a contender.

    Attributes:
        name: communicator, torch (its backend hccl), or another backend of torch.
        variable: set while it is opened, with its value.
        is_registered: whether its buffers are in registered memory.
    """

    name: str
    variable: tuple[str, str] | None = None
    is_registered: bool = False

    def __call__(self, endpoint: Endpoint) -> Contender:
        """Open it; blocks until all ranks are connected."""
        import torch

        from hccl_py.bench.collective.over_communicator import CommunicatorContender
        from hccl_py.bench.collective.over_torch import TorchContender
        from hccl_py.memory.registered import empty

        contender: Contender
        with _environment(self.variable):
            if self.name == "communicator":
                contender = CommunicatorContender.open(endpoint)
            else:
                backend = "hccl" if self.name == "torch" else self.name
                contender = TorchContender(backend, endpoint)
        make = empty if self.is_registered else torch.zeros
        contender.zeros = lambda count, dtype: make(count, dtype=getattr(torch, dtype))
        return contender


@contextmanager
def _environment(variable: tuple[str, str] | None) -> Iterator[None]:
    if variable is None:
        yield
        return
    name, value = variable
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def with_algorithm(api: str, place: str) -> Api:
    """Call hccl with an algorithm, as --algorithm or HCCL_ALGORITHM names it."""
    algorithms = ",".join(filter(None, (os.environ.get(ALGORITHM), place)))
    return Api(api, (ALGORITHM, algorithms))


def contenders_of(options: Options) -> dict[str, Open]:
    """Return what to measure, by name; the others are compared with the first."""
    hccl = Api(options.api)
    first: dict[str, Open] = {}
    if options.registered:
        first["registered"] = replace(hccl, is_registered=True)
    found = first | {"hccl": hccl}
    found |= {one: replace(hccl, variable=(COMPRESSION, one)) for one in options.compressions}
    if options.reproducible:
        found["reproducible"] = replace(hccl, variable=(REPRODUCIBLE, "1"))
    found |= {Path(one).name: with_algorithm(options.api, one) for one in options.algorithms}
    return found | {name: Api(name) for name in options.compare}
