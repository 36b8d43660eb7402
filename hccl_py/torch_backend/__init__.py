"""The torch.distributed backend "hccl". Only this folder and what stands above it import torch.

process_group   what torch calls; read first
fast_path       plain tensors go to the communicator at once
checked         the slow path: every other argument
arguments       the tensors of a call as plain buffers
submit, work    checked calls on the communicator, and torch's Work
state           what the parts of a group share
lifecycle       makes and ends the groups of a process
patches         everything that is changed in torch
staging/        tensors of an accelerator, through host memory
"""
