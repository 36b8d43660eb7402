"""hccl beside MPIs, oneCCL, UCC, gloo and DeepSpeed in fresh starts: `python -m benchmarks.peers`.

`__main__` has the command line and the rounds, `contenders` the libraries and how each is started,
`program` the rank that times a library, `machine` the probes of cores and memory, `cases` the
results, `report` the tables.
"""
