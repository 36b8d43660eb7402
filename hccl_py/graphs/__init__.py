"""Calls that are recorded once, and replayed in one crossing into C++.

capture     `hccl_py.capture()`; read first
graph       `Graph.replay`
agreement   checks that all ranks recorded the same calls

`hccl_py/calls/recording.py` records the calls and waits of a block.
"""
