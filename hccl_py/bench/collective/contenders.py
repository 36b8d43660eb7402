"""The contenders by name. A new one is a class like `TorchContender` and an entry of `BASELINES`.

The command holds these functions and only the rank processes call them, so each function imports
its contender itself: the command needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hccl_py.bench.collective.contender import Contender, Endpoint, Open

COMPRESSIONS = ("bf16", "int8")


def _open_torch_hccl(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.collective.torch_contender import TorchContender

    return TorchContender("hccl", endpoint)


def _open_communicator(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.collective.communicator_contender import CommunicatorContender

    return CommunicatorContender(endpoint)


def _open_registered(open_contender: Open, endpoint: Endpoint) -> Contender:
    from hccl_py.memory.registered import empty

    contender = open_contender(endpoint)
    contender.zeros = lambda count, dtype: empty(count, dtype).zero_()
    return contender


@contextmanager
def _environment(variable: str, value: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        os.environ.pop(variable)
        if before is not None:
            os.environ[variable] = before


def _open_compressed(open_contender: Open, compression: str, endpoint: Endpoint) -> Contender:
    from hccl_py.compression import VARIABLE

    with _environment(VARIABLE, compression):
        return open_contender(endpoint)


def open_reproducible(endpoint: Endpoint) -> Contender:
    """Open a communicator whose reductions have the same bits whatever the layout."""
    from hccl_py.algorithms.shared import REPRODUCIBLE

    with _environment(REPRODUCIBLE, "1"):
        return _open_communicator(endpoint)


def _open_with_algorithm(open_contender: Open, place: str, endpoint: Endpoint) -> Contender:
    from hccl_py.algorithms.tuner import VARIABLE

    with _environment(VARIABLE, ",".join(filter(None, (os.environ.get(VARIABLE), place)))):
        return open_contender(endpoint)


def with_algorithm(api: str, place: str) -> Open:
    """Return a way to call hccl with a user's algorithm, by the values of --api and --algorithm."""
    return partial(_open_with_algorithm, APIS[api], place)


def _open_gloo(endpoint: Endpoint) -> Contender:
    from hccl_py.bench.collective.torch_contender import TorchContender

    return TorchContender("gloo", endpoint)


APIS: dict[str, Open] = {"torch": _open_torch_hccl, "communicator": _open_communicator}
"""Ways to call hccl, by the value of --api."""

BASELINES: dict[str, Open] = {"gloo": _open_gloo}
"""What hccl can be compared with in the same processes, by the value of --compare."""

COMPRESSED: dict[tuple[str, str], Open] = {
    (api, compression): partial(_open_compressed, APIS[api], compression)
    for api in APIS
    for compression in COMPRESSIONS
}
"""The same ways with compression between nodes, by the values of --api and --compression."""

REGISTERED: dict[str, Open] = {api: partial(_open_registered, APIS[api]) for api in APIS}
"""The same ways with buffers in registered memory."""
