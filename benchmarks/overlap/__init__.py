"""Measures the communication time of a training step: `python -m benchmarks.overlap`.

`__main__` has the command line and the rounds, `contenders` the ways to average gradients,
`training` the training in a rank, `models` the trained models, `report` the tables.
"""
