"""Pods of an indexed Job, a JobSet, Kubeflow's PyTorchJob and TrainJob; torchrun's PET_ variables.

A pod is a node. Kubernetes gives a pod of an indexed Job only its number, JOB_COMPLETION_INDEX. The
manifest has the rest: `hccl-launch --print-k8s` writes PET_NNODES, PET_NPROC_PER_NODE,
PET_MASTER_ADDR and PET_MASTER_PORT, which torchrun also reads and Kubeflow's operators set.
PyTorchJob sets RANK and WORLD_SIZE as well; RANK is the number of the pod.
"""

from collections.abc import Mapping
from typing import Any

from hccl_py.schedulers.scheduled import (
    Scheduled,
    Task,
    from_variables,
    number,
    refuse_contradiction,
)
from hccl_py.transport.errors import InvalidArgumentError

_BY_HAND = "PET variables"
_NODE_RANK = "PET_NODE_RANK JOB_COMPLETION_INDEX"


def rank_is_of_pod(environ: Mapping[str, str]) -> bool:
    """Return whether RANK numbers a PyTorchJob's pods; a rank has LOCAL_RANK too."""
    in_pod = environ.get("PET_NODE_RANK") or environ.get("KUBERNETES_SERVICE_HOST")
    return bool(environ.get("RANK") and in_pod and not environ.get("LOCAL_RANK"))


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read the variables of a pod."""
    of_pod = rank_is_of_pod(environ)
    if not (of_pod or any(environ.get(name) for name in _NODE_RANK.split())):
        return None
    names = {
        "node_rank": f"{_NODE_RANK} RANK" if of_pod else _NODE_RANK,
        "master_addr": "MASTER_ADDR PET_MASTER_ADDR",
        "master_port": "MASTER_PORT PET_MASTER_PORT",
    }
    if environ.get("PET_NPROC_PER_NODE", "").isdigit():  # otherwise auto, gpu, cpu
        names["local_world_size"] = "PET_NPROC_PER_NODE"
    if environ.get("PET_NNODES", "").isdigit():  # otherwise MIN:MAX
        names["num_nodes"] = "PET_NNODES"
    elif of_pod and not environ.get("PET_NNODES"):
        names["num_nodes"] = "WORLD_SIZE"  # operators without PET_ variables count pods
    source = _source(environ)
    known: dict[str, Any] = {"is_pod": source != _BY_HAND, **_of_job_set(environ)}
    found = from_variables(environ, source, Task.NODE, names, **known)
    for name in ("JOB_COMPLETION_INDEX", "RANK") if of_pod else ("JOB_COMPLETION_INDEX",):
        if environ.get(name) and environ.get("JOB_INDEX", "0") == "0":
            other = {"node_rank": name}
            refuse_contradiction(found, from_variables(environ, "of the pod", Task.NODE, other))
    return found


def _source(environ: Mapping[str, str]) -> str:
    if environ.get("JOB_COMPLETION_INDEX"):
        if environ.get("PET_NODE_RANK"):
            return "TrainJob"
        return "JobSet" if environ.get("JOBSET_NAME") else "indexed Job"
    return "PyTorchJob" if environ.get("KUBERNETES_SERVICE_HOST") else _BY_HAND


def _of_job_set(environ: Mapping[str, str]) -> dict[str, str]:
    """Return where the pods of a JobSet meet, if its manifest has the names.

    Pod 0 of job 0 is JOBSET-REPLICATED_JOB-0-0 in the service named after the JobSet.
    """
    if environ.get("JOB_INDEX", "0") != "0" and not environ.get("PET_NODE_RANK"):
        job = number(environ, "JOB_INDEX")
        raise InvalidArgumentError(
            f"JOB_INDEX={job}: JOB_COMPLETION_INDEX counts the pods of each job of the JobSet from "
            "0; set PET_NODE_RANK to the number of the pod among all jobs"
        )
    name, replicated = environ.get("JOBSET_NAME"), environ.get("REPLICATED_JOB_NAME")
    given = environ.get("MASTER_ADDR") or environ.get("PET_MASTER_ADDR")
    if given or not (name and replicated):
        return {}
    return {"master_addr": f"{name}-{replicated}-0-0.{name}"}
