"""Answers of all nodes -> findings. Pure: nothing here reads from a machine.

compare.py    settings, versions and the table; `resources.py`, `addresses.py` the other facts
links.py      connections between nodes
"""
