"""Calls that are recorded once, and replayed in one crossing into C++.

capture     `hccl_py.capture()`; read first
recording   what a block of it calls and waits for, and the steps that this makes
graph       `Graph.replay`
agreement   whether all ranks recorded the same
"""
