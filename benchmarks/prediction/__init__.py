"""Compares predictions of `hccl_py.simulate` with measurements.

__main__  the command: start reading here
measure   times of every algorithm on namespaces joined by slow and fast links
compare   simulates the same cases, and makes the tables
"""
