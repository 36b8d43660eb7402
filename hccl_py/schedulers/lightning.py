"""Lightning's variables for a cluster without a scheduler; other tools read NODE_RANK too.

Users set NODE_RANK, MASTER_ADDR, MASTER_PORT and WORLD_SIZE on every node, and Lightning sets
LOCAL_RANK in the processes that it starts. GROUP_RANK is an older name of NODE_RANK.
"""

from collections.abc import Mapping

from hccl_py.schedulers.scheduled import Scheduled, Task, from_variables

_NAMES = {
    "node_rank": "NODE_RANK GROUP_RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
}


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read NODE_RANK and the related variables."""
    if not any(environ.get(name) for name in _NAMES["node_rank"].split()):
        return None
    return from_variables(environ, "Lightning", Task.NODE, _NAMES)
