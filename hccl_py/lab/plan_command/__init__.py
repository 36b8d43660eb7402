"""The command `hccl-plan`: list, prove, print and draw algorithms. Start at `main.py`."""
