"""A job of fixed size: one coordinator, and an agent on each host, which starts its ranks.

layout.py    the location, command and environment of each rank
coordinator/        waits for agents; starts, stops, restarts and ends the ranks
agent.py     the ranks of one host, started by the coordinator's messages
ranks.py     their processes
loop.py      the event loop of both
channel.py   messages between agents and coordinator on other hosts; the agent's end
over_ssh.py  agents that this process starts on other hosts
rank_input.py  the standard input of rank 0
streams.py   the output of this process
reasons.py   the likely reason for an exit code
serve.py     the process with the coordinator, and perhaps an agent
join.py      the process with an agent only
"""
