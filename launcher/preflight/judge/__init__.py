"""Answers of all nodes -> findings. Pure: nothing here looks at a machine.

compare.py    facts: settings and versions; `resources.py` and `addresses.py` the others
links.py      who reaches whom
rdma.py       RDMA ports
overview.py   a line for each node
nodes.py      all nodes beside each other
"""
