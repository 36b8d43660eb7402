"""The coordinator of a job: one for all agents.

coordinator.py  the state of the job, without I/O: waits for agents, starts, restarts, ends
agents.py    who has come, and how nodes are named in messages
ending.py    what becomes of the job when no rank runs
server.py    its end of the messages, see `channel.py`
"""
