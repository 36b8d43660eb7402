"""Models: gradients in registered memory, compressed or summed exactly; steps of optimizers.

fast_ddp            one all_reduce for all gradients
exact               gradients that are added up without rounding
compression_hook    DDP's hook that compresses between nodes
registered_tensors  tensors, buckets and buffers in registered memory
step_count          counts the steps of optimizers for hccl-launch
"""
