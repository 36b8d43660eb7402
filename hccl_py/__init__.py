"""hccl-py: fast collectives for PyTorch on CPUs and Ethernet.

`torch.distributed.init_process_group("hccl")` needs no import of this package. A program without
torch.distributed starts at `Communicator`. The public names are listed below and are loaded on
first use, because torch imports this package in every `import torch`.
"""

import os as _os
import sys as _sys
from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hccl_py.algorithms.custom import algorithm as algorithm
    from hccl_py.calls.call_group import group as group
    from hccl_py.calls.work import Work as Work
    from hccl_py.communicator import Communicator as Communicator
    from hccl_py.compression import ErrorFeedback as ErrorFeedback
    from hccl_py.graphs.capture import capture as capture
    from hccl_py.lab.simulation import Costs as Costs
    from hccl_py.lab.simulation import LinkCosts as LinkCosts
    from hccl_py.lab.simulation import Topology as Topology
    from hccl_py.lab.simulation import simulate as simulate
    from hccl_py.launcher.spawn.call import spawn as spawn
    from hccl_py.membership.unique_id import UniqueId as UniqueId
    from hccl_py.membership.unique_id import get_unique_id as get_unique_id
    from hccl_py.memory.registered import empty as empty
    from hccl_py.memory.scaled import premul_sum as premul_sum
    from hccl_py.torch_backend.training.compression_hook import CompressionState as CompressionState
    from hccl_py.torch_backend.training.compression_hook import compression_hook as compression_hook
    from hccl_py.torch_backend.training.exact import ExactAccumulator as ExactAccumulator
    from hccl_py.torch_backend.training.exact import exact_hook as exact_hook
    from hccl_py.torch_backend.training.fast_ddp import fast_ddp as fast_ddp
    from hccl_py.torch_backend.training.registered_tensors import register as register
    from hccl_py.transport.errors import AbortedError as AbortedError
    from hccl_py.transport.errors import BootstrapError as BootstrapError
    from hccl_py.transport.errors import CollectiveTimeoutError as CollectiveTimeoutError
    from hccl_py.transport.errors import CommunicatorError as CommunicatorError
    from hccl_py.transport.errors import HcclError as HcclError
    from hccl_py.transport.errors import InvalidArgumentError as InvalidArgumentError
    from hccl_py.transport.errors import MismatchError as MismatchError
    from hccl_py.transport.errors import PeerLostError as PeerLostError
    from hccl_py.transport.errors import RankFailedError as RankFailedError
    from hccl_py.transport.types import ReduceOp as ReduceOp

    __version__: str

_NAMES = {
    "communicator": ("Communicator",),
    "calls.work": ("Work",),
    "membership.unique_id": ("UniqueId", "get_unique_id"),
    "transport.types": ("ReduceOp",),
    "calls.call_group": ("group",),
    "algorithms.custom": ("algorithm",),
    "graphs.capture": ("capture",),
    "memory.scaled": ("premul_sum",),
    "memory.registered": ("empty",),
    "torch_backend.training.exact": ("ExactAccumulator", "exact_hook"),
    "torch_backend.training.fast_ddp": ("fast_ddp",),
    "torch_backend.training.registered_tensors": ("register",),
    "compression": ("ErrorFeedback",),
    "launcher.spawn.call": ("spawn",),
    "lab.simulation": ("simulate", "Topology", "Costs", "LinkCosts"),
    "torch_backend.training.compression_hook": ("CompressionState", "compression_hook"),
    "transport.errors": (
        *("HcclError", "InvalidArgumentError", "BootstrapError", "CommunicatorError"),
        *("PeerLostError", "CollectiveTimeoutError", "MismatchError", "AbortedError"),
        "RankFailedError",
    ),
}
_HOMES = {name: f"hccl_py.{module}" for module, names in _NAMES.items() for name in names}

__all__ = ["__version__", *_HOMES]

_HERE = _os.path.dirname(__file__)
if not _os.path.exists(_os.path.join(_HERE, "transport")):
    # Python found hccl_py/ of a checkout because the program started beside it. The installed
    # package has the other folders and the compiled modules, and takes precedence.
    # importlib.metadata could find it, but is slow to import.
    _folders = [_os.path.join(_folder, "hccl_py") for _folder in _sys.path]
    __path__[:0] = [one for one in _folders if _os.path.exists(_os.path.join(one, "transport"))][:1]
    if len(__path__) == 1:
        raise ImportError(
            f"{_HERE} is a checkout that is not installed; run `pip install -e .` in the folder "
            "above it"
        )


def __getattr__(name: str) -> object:
    if name == "__version__":
        from hccl_py.installation import PACKAGE, version_of

        return version_of(PACKAGE)
    if name not in _HOMES:
        raise AttributeError(f"module 'hccl_py' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


if _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
    _import_module("hccl_py._autoload").register_without_torch()
