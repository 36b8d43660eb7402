"""Horovod's questions about its build. hccl-py has none of the libraries that they name."""


def mpi_enabled() -> bool:
    """Return False: no rank uses MPI."""
    return False


def mpi_built() -> bool:
    """Return False: no rank uses MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Return True: a program may use mpi4py beside this, as hccl-py never calls MPI."""
    return True


def gloo_enabled() -> bool:
    """Return False: hccl-py moves the data itself."""
    return False


def gloo_built() -> bool:
    """Return False: hccl-py moves the data itself."""
    return False


def nccl_built() -> int:
    """Return 0: tensors are reduced in host memory."""
    return 0


def ddl_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def cuda_built() -> bool:
    """Return False."""
    return False


def rocm_built() -> bool:
    """Return False."""
    return False
