"""mpirun and mpiexec: Open MPI, MPICH and Intel MPI (both Hydra), and plain PMIx; `flux run`.

No MPI library is loaded: the launchers set these variables before the program starts. A single task
on a node may be hccl-launch, so it is also read as a node.
"""

from collections.abc import Mapping

from hccl_py.schedulers.scheduled import Scheduled, Task, from_variables, number

_OPEN_MPI = {
    "rank": "OMPI_COMM_WORLD_RANK",
    "world_size": "OMPI_COMM_WORLD_SIZE",
    "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
    "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
    "job_id": "PMIX_NAMESPACE",
}
_HYDRA = {
    "rank": "PMI_RANK",
    "world_size": "PMI_SIZE",
    "local_rank": "MPI_LOCALRANKID PALS_LOCAL_RANKID",
    "local_world_size": "MPI_LOCALNRANKS",
}
_FLUX = {
    "rank": "FLUX_TASK_RANK",
    "world_size": "FLUX_JOB_SIZE",
    "local_rank": "FLUX_TASK_LOCAL_ID",
    "job_id": "FLUX_JOB_ID",
}
_PMIX = {"rank": "PMIX_RANK", "world_size": "WORLD_SIZE", "job_id": "PMIX_NAMESPACE"}


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read the variables of the MPI launcher; None also for the PMI variables of srun.

    srun's PMI variables repeat some of Slurm's own.
    """
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return _read(environ, "Open MPI", _OPEN_MPI)
    if environ.get("FLUX_TASK_RANK"):
        return _read(environ, "Flux", _FLUX, _local_size_of_flux(environ))
    if environ.get("PMI_RANK") and environ.get("MPI_LOCALRANKID"):
        is_intel = any(name.startswith("I_MPI_") for name in environ)
        return _read(environ, "Intel MPI" if is_intel else "MPICH", _HYDRA)
    if environ.get("SLURM_STEP_ID"):
        return None
    if environ.get("PMI_RANK"):
        return _read(environ, "PMI", _HYDRA)
    if environ.get("PMIX_RANK"):
        return _read(environ, "PMIx", _PMIX)
    return None


def _local_size_of_flux(environ: Mapping[str, str]) -> int | None:
    """Return the tasks per node, equal on all nodes unless the user asks otherwise."""
    texts = {"FLUX_JOB_SIZE": "0", "FLUX_JOB_NNODES": "0", **environ}
    tasks, nodes = number(texts, "FLUX_JOB_SIZE"), number(texts, "FLUX_JOB_NNODES")
    return tasks // nodes if nodes and tasks % nodes == 0 else None


def _read(
    environ: Mapping[str, str],
    source: str,
    names: Mapping[str, str],
    local_world_size: int | None = None,
) -> Scheduled:
    alone = local_world_size == 1 or environ.get(names.get("local_world_size", "")) == "1"
    as_node = {"node_rank": names["rank"], "num_nodes": names["world_size"]} if alone else {}
    return from_variables(
        environ,
        source,
        Task.RANK,
        {**names, **as_node},
        is_innermost=True,
        local_world_size=local_world_size,
    )
