"""Prediction against measurement: is what `hccl_py.simulate` says what the clock says?

__main__  the command: start reading here
measure   times of every algorithm on namespaces joined by slow and fast links
compare   the same cells simulated, and the tables
"""
