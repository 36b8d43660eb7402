"""What the launcher says of a job while it runs.

rank_progress.py   one rank, as the agent on its host sees it
stack.py           where a rank is, by py-spy
job_progress.py    all ranks, as the coordinator sees them: those without progress are named
status_line.py     the line on a terminal
"""
