"""Measures the communication time of a training step: `python -m benchmarks.overlap`.

`__main__` has the command line and the rounds, `contenders` the ways to average gradients,
`training` the one that trains in a rank, `models` what it trains, `report` the tables.
"""
