"""A job of fixed size: one coordinator, and an agent on each host that starts the ranks there.

layout.py    which rank runs where, what it runs, and what its environment says
coordinator/        the coordinator: waits for agents, starts, stops, restarts and ends the ranks
agent.py     the ranks of one host, started when the coordinator says so
ranks.py     their processes
loop.py      the event loop of both
channel.py   messages between agents and coordinator on other hosts; the agent's end of them
over_ssh.py  agents that this process starts on other hosts
rank_input.py  what rank 0 reads from its standard input
streams.py   what this process prints
reasons.py   what an exit code most likely means
serve.py     the process with the coordinator, and perhaps an agent
join.py      the process with an agent alone
"""
