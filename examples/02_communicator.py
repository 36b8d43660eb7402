"""Collectives on numpy arrays, without torch.distributed.

hccl-launch --nproc-per-node 4 examples/02_communicator.py
"""

import numpy as np

from hccl_py import Communicator

comm = Communicator()  # reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

# The sum over all ranks, in place.
data = np.full(1_000_000, comm.rank + 1, dtype=np.float32)
comm.all_reduce(data)
assert (data == sum(range(1, comm.world_size + 1))).all()

# The same in the background, while this rank computes something else.
work = comm.nonblocking.all_reduce(data)
squares = np.arange(10) ** 2
work.wait()

# Rank r sends block b to rank b and receives the block of rank s as block s.
outgoing = np.array([[comm.rank, peer] for peer in range(comm.world_size)])
incoming = np.empty_like(outgoing)
comm.all_to_all(incoming, outgoing)
assert (incoming[:, 0] == np.arange(comm.world_size)).all()

comm.barrier()
if comm.rank == 0:
    print(f"{comm.world_size} ranks, by node {comm.nodes}: every number is right")
comm.close()
