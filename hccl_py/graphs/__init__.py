"""Calls that are recorded once, and replayed in one crossing into C++.

capture     `hccl_py.capture()`; read first
graph       `Graph.replay`
agreement   whether all ranks recorded the same

`hccl_py/recording.py` notes what a block calls and waits for.
"""
