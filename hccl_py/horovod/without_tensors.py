"""The names of Horovod's API that are the same for every library of tensors.

Those about Horovod's build are made here: hccl-py has none of the libraries that they name.
"""

from collections.abc import Callable
from typing import TypeVar

from hccl_py.horovod.errors import HorovodInternalError as HorovodInternalError
from hccl_py.horovod.join import join as join
from hccl_py.horovod.objects import allgather_object as allgather_object
from hccl_py.horovod.objects import broadcast_object as broadcast_object
from hccl_py.horovod.process_sets import ProcessSet as ProcessSet
from hccl_py.horovod.process_sets import add_process_set as add_process_set
from hccl_py.horovod.process_sets import barrier as barrier
from hccl_py.horovod.process_sets import global_process_set as global_process_set
from hccl_py.horovod.process_sets import remove_process_set as remove_process_set
from hccl_py.horovod.reductions import Adasum as Adasum
from hccl_py.horovod.reductions import Average as Average
from hccl_py.horovod.reductions import Max as Max
from hccl_py.horovod.reductions import Min as Min
from hccl_py.horovod.reductions import Product as Product
from hccl_py.horovod.reductions import Sum as Sum
from hccl_py.horovod.world import cross_rank as cross_rank
from hccl_py.horovod.world import cross_size as cross_size
from hccl_py.horovod.world import init as init
from hccl_py.horovod.world import is_homogeneous as is_homogeneous
from hccl_py.horovod.world import is_initialized as is_initialized
from hccl_py.horovod.world import local_rank as local_rank
from hccl_py.horovod.world import local_size as local_size
from hccl_py.horovod.world import rank as rank
from hccl_py.horovod.world import shutdown as shutdown
from hccl_py.horovod.world import size as size

Answer = TypeVar("Answer", bound=int)


def _constant(name: str, answer: Answer, why: str) -> Callable[[], Answer]:
    def function() -> Answer:
        return answer

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Return {answer}: {why}."
    return function


_NO_MPI, _OWN = "no rank uses MPI", "hccl-py moves the data itself"
mpi_enabled = _constant("mpi_enabled", False, _NO_MPI)
mpi_built = _constant("mpi_built", False, _NO_MPI)
mpi_threads_supported = _constant(
    "mpi_threads_supported", True, "a program may use mpi4py too, as hccl-py never calls MPI"
)
gloo_enabled = _constant("gloo_enabled", False, _OWN)
gloo_built = _constant("gloo_built", False, _OWN)
nccl_built = _constant("nccl_built", 0, "tensors are reduced in host memory")
ddl_built = _constant("ddl_built", False, _OWN)
ccl_built = _constant("ccl_built", False, _OWN)
cuda_built = _constant("cuda_built", False, "tensors are reduced in host memory")
rocm_built = _constant("rocm_built", False, "tensors are reduced in host memory")
