"""Which part of a job this process runs: all of it, the coordinator with node 0, or another node.

choose.py    the entry: from the command line to what runs
several_nodes.py  one of several nodes that were started by hand or by a scheduler
scheduled.py one of several nodes or ranks that a scheduler started
over_ssh.py  the coordinator of nodes that it starts over ssh
dry_run.py   the ranks that would run, for --dry-run
settings.py  what all of them need: ports, program, settings of the coordinator
"""
