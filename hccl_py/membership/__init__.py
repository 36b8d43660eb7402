"""Which ranks belong to a communicator: how they meet, subset, split and shrink.

environment   the store that torchrun and hccl-launch name in the environment
unique_id     256 bytes in the place of a store, as with NCCL
subset        a communicator of some ranks, made by a call of the larger one; read first
split         subsets by colour
shrink        a communicator of the ranks that remain after a failure
"""
