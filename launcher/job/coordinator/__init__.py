"""The coordinator of a job: one for all agents.

coordinator.py  the state of the job, without I/O: waits for agents, starts, restarts, ends
agents.py    the agents that have joined, and names of nodes in messages
ending.py    the outcome of the job when no rank runs
server.py    its end of the messages, see `channel.py`
"""
