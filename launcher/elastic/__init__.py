"""Jobs whose size may change: `torch.distributed.run` has them, `run.py` hands them over."""
