"""Jobs whose number of nodes may change, and torchrun's own options: torch.distributed.elastic.

Only this folder of the launcher imports torch, and whoever counts its devices. torch's agent
decides when the ranks of this node start and stop, on a thread of its own; the agent of all jobs
(`job/agent.py`) starts and watches them in the main thread.

run.py          the entry: from the command line to the exit code
torch_names.py  torch's private names that the others need; look here when torch changes
meeting.py      where the nodes meet, and waiting for that place
rendezvous.py   torch's rendezvous there
members.py      who takes part: without clocks, and never silent
agent.py        torch's agent, which also says why the ranks start again and how many there are
board.py        what the nodes tell each other of failures and ends
ranks.py        the ranks of this node
preflight.py    what would fail on this node
"""
