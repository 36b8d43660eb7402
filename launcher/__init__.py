"""hccl-launch: starts the ranks of a job, on torch.distributed.elastic.

Start at `main.py`, the command. `job.py` is the process that the user sees, which forks `agent.py`:
elastic in a process of its own, whose ranks run `worker.py`. Rendezvous, restarts, log files and
error files are elastic's. Nothing here imports the data path.
"""
