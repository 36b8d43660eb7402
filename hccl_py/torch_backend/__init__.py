"""The torch.distributed backend "hccl"; `process_group.py` is what torch calls."""
