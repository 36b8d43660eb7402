"""A job of fixed size: one head, and an agent on each host that starts the ranks there.

layout.py    which rank runs where, and what its environment says
head.py      the state of the job, without I/O: waits for agents, starts, stops, restarts, ends
agent.py     the ranks of one host (program.py), started when the head says so
ranks.py     their processes
loop.py      the event loop of both
channel.py   messages between agents and head on other hosts; the agent's end of them
head_server.py   the head's end
serve.py     the process with the head, and perhaps an agent
join.py      the process with an agent alone
"""
