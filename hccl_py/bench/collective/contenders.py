"""The contenders by name: an `Api` opens one in a rank process, which alone imports torch.

Without torch the communicator is measured, on numpy arrays.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hccl_py.algorithms.choice.shared import REPRODUCIBLE
from hccl_py.algorithms.choice.tuner import VARIABLE as ALGORITHM
from hccl_py.bench.collective.contender import Contender, Endpoint, Open, has_torch
from hccl_py.bench.collective.options import Options
from hccl_py.compression import VARIABLE as COMPRESSION

APIS = ("torch", "communicator")
"""Ways to call hccl, the values of --api."""

BASELINES = ("gloo",)
"""The contenders beside hccl in the same processes, the values of --compare."""

COMPRESSIONS = ("bf16", "int8")


@dataclass(frozen=True)
class Api:
    """Opens a contender.

    Attributes:
        name: communicator, torch (its backend hccl), or another backend of torch.
        variable: name and value of an environment variable, set while the contender is opened.
        is_registered: whether its buffers are in registered memory.
    """

    name: str
    variable: tuple[str, str] | None = None
    is_registered: bool = False

    def __call__(self, endpoint: Endpoint) -> Contender:
        """Open it; blocks until all ranks are connected."""
        from hccl_py.memory.registered import empty

        contender: Contender
        with _environment(self.variable):
            if self.name == "communicator":
                from hccl_py.bench.collective.over_communicator import CommunicatorContender

                contender = CommunicatorContender.open(endpoint)
            else:
                from hccl_py.bench.collective.over_torch import TorchContender

                backend = "hccl" if self.name == "torch" else self.name
                contender = TorchContender(backend, endpoint)
        if not has_torch():
            contender.zeros = empty if self.is_registered else _zeros
            return contender
        import torch

        make = empty if self.is_registered else torch.zeros
        contender.zeros = lambda count, dtype: make(count, dtype=getattr(torch, dtype))
        return contender


def _zeros(count: int, dtype: str) -> npt.NDArray[Any]:
    """Make an array that begins at a multiple of 64 bytes, as torch's tensors do."""
    num_bytes = count * np.dtype(dtype).itemsize
    memory = np.zeros(num_bytes + 63, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes].view(dtype)


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
    """Return hccl with an algorithm, in the syntax of --algorithm and HCCL_ALGORITHM."""
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
        found["exact"] = replace(hccl, variable=(REPRODUCIBLE, "exact"))
    found |= {Path(one).name: with_algorithm(options.api, one) for one in options.algorithms}
    return found | {name: Api(name) for name in options.compare}
