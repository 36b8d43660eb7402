"""Jobs whose number of nodes may change, and torchrun's own options: torch.distributed.elastic.

Only this folder of the launcher imports torch.
"""
