"""Horovod's collectives and their gradients, each once, on the arrays of any library.

collective   what all of them are
reduce       allreduce
rows         allgather, broadcast, reducescatter, alltoall
arrays       what they ask of a library of arrays
"""
