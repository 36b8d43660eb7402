"""Which cores a rank gets: this machine as /sys shows it, its cores split among the ranks.

Start at `binding.py`. `topology.py` and `cgroup.py` read the machine.
"""
