"""The part of a job that this process runs: all, the coordinator with node 0, or another node.

choose.py    the entry: chooses the part by the command line
several_nodes.py  one of several nodes, started by hand or by a scheduler
scheduled.py one of several nodes or ranks that a scheduler started
over_ssh.py  the coordinator of nodes that it starts over ssh
dry_run.py   the ranks that would run, for --dry-run
settings.py  common needs: ports, program, settings of the coordinator
"""
