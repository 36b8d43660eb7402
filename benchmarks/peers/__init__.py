"""Ours beside MPICH, Open MPI, UCC and gloo in fresh starts: `python -m benchmarks.peers`.

`__main__` has the command line and the rounds, `contenders` who takes part and how one is started,
`program` the rank that times it, `machine` what the run was on, `cells` the results, `report` the
tables.
"""
