"""The cores of each rank: this machine by /sys, its cores split among the ranks.

Start at `binding.py`. `topology.py` and `cgroup.py` read the machine.
"""
