"""Exchanges pickled Python objects. Ranks trust each other, as everywhere in hccl-py."""

import pickle
from typing import Any

import numpy as np

from hccl_py.horovod.collectives.arrays import ARRAYS
from hccl_py.horovod.collectives.rows import Broadcast, Gather
from hccl_py.horovod.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank`: itself on the root, a copy on other ranks."""
    is_root = process_set.root(root_rank) == process_set.communicator.rank
    content = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
    call = Broadcast(root_rank, process_set)
    (length,), _ = call.start(ARRAYS, [np.array(content.size, np.int64)]).wait()
    given = content if is_root else np.empty(int(length), np.uint8)
    (received,), _ = call.start(ARRAYS, [given]).wait()
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, by rank."""
    content = np.frombuffer(pickle.dumps(obj), np.uint8)
    (joined,), lengths = Gather(process_set).start(ARRAYS, [content]).wait()
    *parts, _ = np.split(joined, np.cumsum(lengths))
    return [pickle.loads(part.tobytes()) for part in parts]
