"""Sets the variables of a rank in a process that a scheduler started without RANK.

Only `Communicator()` and `init_process_group("hccl")` call this: a program that uses neither keeps
its environment. Afterwards the program and its children have RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun.
"""

import logging
import os
import threading

from hccl_py.schedulers.reader import read
from hccl_py.schedulers.rendezvous import find_rendezvous
from hccl_py.schedulers.scheduled import Scheduled, Task
from hccl_py.transport.errors import InvalidArgumentError

logger = logging.getLogger("hccl_py")

_TIMEOUT_S = 300.0
_lock = threading.Lock()


def adopt(timeout_s: float = _TIMEOUT_S) -> Scheduled | None:
    """Set the variables of this rank; do nothing if RANK is set or there is no scheduler.

    All ranks call it, because they may exchange the address at which they meet.

    Raises:
        InvalidArgumentError: the scheduler's variables do not identify a rank.
        BootstrapError: the ranks could not exchange the address.
    """
    with _lock:
        found = None if os.environ.get("RANK") else read(os.environ)
        return None if found is None else _adopt(as_rank(found), timeout_s)


def _adopt(found: Scheduled, timeout_s: float) -> Scheduled:
    where = find_rendezvous(found, os.environ, timeout_s)
    if where.secret:
        os.environ.setdefault("HCCL_SECRET", where.secret)
    for name, value in (
        *(("RANK", found.rank), ("WORLD_SIZE", found.world_size)),
        *(("LOCAL_RANK", found.local_rank), ("LOCAL_WORLD_SIZE", found.local_world_size)),
        *(("MASTER_ADDR", where.address), ("MASTER_PORT", where.port)),
    ):
        if value is not None:
            os.environ[name] = str(value)
    # A warning is printed even if the program has not set up logging.
    asked = os.environ.get("HCCL_DEBUG", "0") not in ("", "0")
    level = logging.WARNING if asked else logging.INFO
    logger.log(
        logging.DEBUG if found.rank else level,
        f"{found}; the ranks meet at {where.address}:{where.port} ({where.origin})",
    )
    return found


def as_rank(found: Scheduled) -> Scheduled:
    """Return the record of this process as a rank; one process per node is the node's only rank."""
    if found.task is Task.NODE and found.local_world_size in (None, 1) and not found.local_rank:
        found = found._replace(rank=found.node_rank, world_size=found.num_nodes)
        found = found._replace(local_rank=0, local_world_size=1)
    if found.rank is not None and found.world_size is not None:
        return found
    if found.task is Task.NONE:
        starter = f"hccl-launch {found.options}" if found.options else "srun or hccl-launch"
        raise InvalidArgumentError(
            f"RANK is not set, and this process is no task of {found.source}: start the program "
            f"with {starter}"
        )
    missing = "RANK" if found.world_size is not None or found.num_nodes else "WORLD_SIZE"
    raise InvalidArgumentError(
        f"{missing} is not set, and cannot be derived from {found}: start the program with "
        "hccl-launch, or set RANK and WORLD_SIZE"
    )
