"""The command `hccl-plan`; start reading at `main.py`."""
