"""What the commands of the benchmarks read from a command line.

parser    one line for one mistake, in place of the whole usage
values    sizes, numbers, lists of names, rates and paths
"""
