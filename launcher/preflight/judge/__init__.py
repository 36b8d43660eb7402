"""Answers of all nodes -> findings. Pure: nothing here looks at a machine.

compare.py    settings and versions; `resources.py` and `addresses.py` the other facts
links.py      who reaches whom
overview.py   a line for each node, and its RDMA ports
nodes.py      all nodes beside each other
"""
