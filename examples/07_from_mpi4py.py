"""A port from mpi4py: hccl makes each call with the arguments that MPI had, and the results agree.

mpirun -n 2 python examples/07_from_mpi4py.py
"""

import numpy as np
from mpi4py import MPI

from hccl_py import Communicator, ReduceOp

world = MPI.COMM_WORLD
n = world.size
with Communicator() as comm:
    me = comm.rank
    mine = np.arange(6.0) + me
    sums = {name: np.zeros(6) for name in ("mpi", "hccl")}
    world.Allreduce([mine, 6, MPI.DOUBLE], [sums["mpi"], MPI.DOUBLE], op=MPI.SUM)
    comm.all_reduce([mine, 6, MPI.DOUBLE], ReduceOp.SUM, output=[sums["hccl"], MPI.DOUBLE])
    np.testing.assert_array_equal(sums["hccl"], sums["mpi"])

    # Rank r has r + 1 elements, and the blocks lie two elements further apart than they are long.
    counts = [rank + 1 for rank in range(n)]
    starts = [rank * (n + 2) for rank in range(n)]
    rows = {name: np.full(n * (n + 2), -1, np.int32) for name in ("mpi", "hccl")}
    block = np.full(me + 1, me, np.int32)
    world.Allgatherv([block, MPI.INT], [rows["mpi"], (counts, starts), MPI.INT])
    comm.all_gather([rows["hccl"], (counts, starts), MPI.INT], [block, MPI.INT])
    np.testing.assert_array_equal(rows["hccl"], rows["mpi"])

    world.Allreduce(MPI.IN_PLACE, sums["mpi"], op=MPI.MAX)
    comm.all_reduce(MPI.IN_PLACE, ReduceOp.MAX, output=sums["hccl"])
    np.testing.assert_array_equal(sums["hccl"], sums["mpi"])
    print(f"rank {me} of {n}: hccl and MPI agree\n", end="", flush=True)
