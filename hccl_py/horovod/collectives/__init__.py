"""Horovod's collectives and their gradients, for the arrays of any library.

collective   their interface
reduce       allreduce
rows         allgather, broadcast, reducescatter, alltoall
arrays       the operations that they need of a library
"""
