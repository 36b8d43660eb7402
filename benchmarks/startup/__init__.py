"""How fast ranks start, and their descriptors and memory: `python -m benchmarks.startup`.

`__main__` has the command line, the fresh starts and the tables, `rank` the steps of each rank.
"""
