"""Horovod's questions about its build. hccl-py has none of the libraries that they name."""

from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer", bound=int)


def _says(name: str, answer: Answer, why: str) -> Callable[[], Answer]:
    def function() -> Answer:
        return answer

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {answer}: {why}."
    return function


_NO_MPI, _OWN = "no rank uses MPI", "hccl-py moves the data itself"
mpi_enabled = _says("mpi_enabled", False, _NO_MPI)
mpi_built = _says("mpi_built", False, _NO_MPI)
mpi_threads_supported = _says(
    "mpi_threads_supported", True, "a program may use mpi4py too, as hccl-py never calls MPI"
)
gloo_enabled = _says("gloo_enabled", False, _OWN)
gloo_built = _says("gloo_built", False, _OWN)
nccl_built = _says("nccl_built", 0, "tensors are reduced in host memory")
ddl_built = _says("ddl_built", False, _OWN)
ccl_built = _says("ccl_built", False, _OWN)
cuda_built = _says("cuda_built", False, "tensors are reduced in host memory")
rocm_built = _says("rocm_built", False, "tensors are reduced in host memory")
