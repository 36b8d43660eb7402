"""How fast ranks start, and what each holds open: `python -m benchmarks.startup`.

`__main__` has the command line, the fresh starts and the tables, `rank` what each rank does.
"""
