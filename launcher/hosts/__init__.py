"""The hosts of a job, and an agent on each of them over ssh.

Start at `host_list.py` (`--hosts`, `--hostfile`), then `addresses.py` (names, and which host this
is), `environment.py` (`-x`, `--env-file`) and `remote_agent.py` (one agent over one ssh).
"""
