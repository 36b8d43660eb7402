"""What the launcher says of a job while it runs.

rank_progress.py   one rank, as the agent on its host sees it
job_progress.py    all ranks, as the coordinator sees them: the status line, and stalled ranks
"""
