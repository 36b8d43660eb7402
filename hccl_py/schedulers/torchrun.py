"""A rank's own variables: of torchrun, of hccl-launch, or set by hand."""

from collections.abc import Mapping

from hccl_py.schedulers import kubernetes
from hccl_py.schedulers.scheduled import Scheduled, Task, from_variables

_NAMES = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK NODE_RANK",
    "num_nodes": "GROUP_WORLD_SIZE",
    "job_id": "TORCHELASTIC_RUN_ID",
}


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read RANK, WORLD_SIZE and so on. Only launchers set GROUP_RANK; RANK is also set by hand."""
    if not environ.get("RANK") or kubernetes.rank_is_of_pod(environ):
        return None
    by_launcher = bool(environ.get("GROUP_RANK"))
    source = "torchrun" if by_launcher else "set by hand"
    return from_variables(environ, source, Task.RANK, _NAMES, is_innermost=by_launcher)
