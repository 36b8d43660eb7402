"""Any Python objects between ranks, pickled. Ranks trust each other, as in all of hccl-py."""

import pickle
from typing import Any

import numpy as np

from hccl_py.horovod.array_calls import allgather, broadcast
from hccl_py.horovod.process_sets import ProcessSet, global_process_set


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the object of `root_rank`, on the root the very same, elsewhere a copy."""
    is_root = process_set.root(root_rank) == process_set.communicator.rank
    content = np.frombuffer(pickle.dumps(obj) if is_root else b"", np.uint8)
    length = int(broadcast(np.array(content.size, np.int64), root_rank, name, process_set))
    given = content if is_root else np.empty(length, np.uint8)
    received = broadcast(given, root_rank, name, process_set)
    return obj if is_root else pickle.loads(received.tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, by rank."""
    content = np.frombuffer(pickle.dumps(obj), np.uint8)
    lengths = allgather(np.array([content.size]), name, process_set)
    *parts, _ = np.split(allgather(content, name, process_set), np.cumsum(lengths))
    return [pickle.loads(part.tobytes()) for part in parts]
