"""mpirun and mpiexec: Open MPI, MPICH and Intel MPI (both Hydra), and plain PMIx.

No MPI library is loaded: the launchers set these variables before the program starts. A task that
is alone on its node may be hccl-launch, so it is also read as a node.
"""

from collections.abc import Mapping

from hccl_py.schedulers.scheduled import Scheduled, Task, from_variables

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
    "local_rank": "MPI_LOCALRANKID FLUX_TASK_LOCAL_ID PALS_LOCAL_RANKID",
    "local_world_size": "MPI_LOCALNRANKS",
}
_PMIX = {"rank": "PMIX_RANK", "world_size": "WORLD_SIZE", "job_id": "PMIX_NAMESPACE"}


def read(environ: Mapping[str, str]) -> Scheduled | None:
    """Read the variables of the MPI launcher; None also for the PMI variables that srun sets.

    Those repeat a part of what Slurm's own say.
    """
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return _read(environ, "Open MPI", _OPEN_MPI)
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


def _read(environ: Mapping[str, str], source: str, names: Mapping[str, str]) -> Scheduled:
    alone = environ.get(names.get("local_world_size", "")) == "1"
    as_node = {"node_rank": names["rank"], "num_nodes": names["world_size"]} if alone else {}
    return from_variables(environ, source, Task.RANK, {**names, **as_node}, is_innermost=True)
