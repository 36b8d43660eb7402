"""Reads rank, node and their numbers from the variables of schedulers and MPI launchers.

reader          one `read(environ)` for all of them; start here
scheduled       the record that it returns
torchrun, mpi, slurm, kubernetes, lightning   one source each
table           all others, a row each: clouds, operators, batch systems
adopt           gives a process the variables of a rank, RANK … MASTER_PORT
rendezvous      the ranks' meeting address if no variable has it; pmi, pmix: MPI launchers' stores

Ranks and hccl-launch both use this package. It sends nothing and does not import torch.
"""
