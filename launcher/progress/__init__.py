"""The launcher's reports on a running job.

rank_progress.py   one rank, sampled by the agent on its host
job_progress.py    all ranks, at the coordinator: the status line, and stalled ranks
"""
