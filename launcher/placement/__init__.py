"""Which cores a rank gets: this machine as /sys shows it, its cores split among the ranks, the map.

Start at `binding.py`. `topology.py` and `cgroup.py` read the machine, `dry_run.py` prints the map.
"""
