"""`hccl-trace`: one timeline from the flight recorders of all ranks. Start reading at `main.py`."""
