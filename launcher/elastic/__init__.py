"""Jobs whose number of nodes may change, and torchrun's own options: torch.distributed.elastic.

Only this folder of the launcher imports torch.

run.py      the entry: from the command line to the exit code
meeting.py  where the nodes meet, and waiting for that place
members.py  who takes part: without clocks, and never silent
agent.py    torch's agent, which also says why the ranks start again and how many there are
ranks.py    the ranks of this node and how they failed
"""
