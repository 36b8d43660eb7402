"""What communication adds to a training step: `python -m benchmarks.overlap`.

`__main__` has the command line and the rounds, `contenders` the ways to average gradients,
`training` the rank that trains, `models` what it trains, `report` the tables.
"""
