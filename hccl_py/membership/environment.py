"""The store of a stand-alone communicator, from the environment that launchers set.

torch's TCPStore is what launchers already run at MASTER_ADDR:MASTER_PORT, so the communicator joins
that one, or rank 0 starts one, exactly as `init_process_group` does.
"""

import operator
import os
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from hccl_py.membership.unique_id import store_of_unique_id
from hccl_py.schedulers.adopt import adopt
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError

# By process id too: a forked child must not talk on its parent's connection.
_stores: dict[tuple[int, str, int], Any] = {}
_names: Counter[str] = Counter()


def rank_and_size(rank: Any = None, world_size: Any = None) -> tuple[int, int]:
    """Return both as Python's numbers, from the launcher's variables if they are not given."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError("rank and world_size: expected both or neither")
    if rank is None:
        adopt()  # under srun and mpirun nobody has set RANK
        return _number("RANK"), _number("WORLD_SIZE")
    try:
        return operator.index(rank), operator.index(world_size)  # numpy's numbers too
    except TypeError:
        raise InvalidArgumentError(
            f"rank and world_size: expected whole numbers, got {rank!r} and {world_size!r}"
        ) from None


def rendezvous_store(
    store: Any, rank: int, world_size: int, name: str, timeout_s: float
) -> AbstractContextManager[Any]:
    """Open the store through which the ranks of a communicator find each other.

    `store` is one, the bytes of a unique id, or None for that of the environment; `timeout_s` is
    for everything together.
    """
    if isinstance(store, bytes | bytearray | memoryview):
        return store_of_unique_id(store, rank, world_size, timeout_s)
    if store is None and world_size > 1:
        store = store_from_environment(rank, world_size, name, timeout_s)
    return nullcontext(store)


def store_from_environment(rank: int, world_size: int, name: str, timeout_s: float) -> Any:
    """Join the store at MASTER_ADDR:MASTER_PORT, under a prefix of its own for every communicator.

    Rank 0 hosts the store unless a launcher does. All ranks create the communicators of one `name`
    in the same order.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    address = _variable("MASTER_ADDR")
    port = _number("MASTER_PORT")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    key = (os.getpid(), address, port)
    if key not in _stores:
        try:
            _stores[key] = TCPStore(
                host_name=address,
                port=port,
                world_size=world_size,
                is_master=rank == 0 and not hosted,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                multi_tenant=True,  # init_process_group may use the same port in this process
            )
        except (RuntimeError, OSError) as error:
            raise BootstrapError(
                f"rank {rank}: no store at {address}:{port} (MASTER_ADDR, MASTER_PORT): {error}"
            ) from error
    # A launcher's store keeps what a failed attempt left in it. Where rank 0 hosts the store there
    # is none of that, and the count is not the same on nodes that restarted because another did.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if hosted else "0"
    _names[name] += 1
    return PrefixStore(f"hccl/{attempt}/{name}/{_names[name]}", _stores[key])


def _variable(name: str) -> str:
    text = os.environ.get(name)
    if not text:
        raise InvalidArgumentError(
            f"{name} is not set: start the program with hccl-launch, torchrun, srun or mpirun, or "
            "pass store, rank and world_size"
        )
    return text


def _number(name: str) -> int:
    text = _variable(name)
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"{name}: expected a number, got {text!r}") from None
