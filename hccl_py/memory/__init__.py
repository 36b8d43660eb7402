"""Converts a call's arguments for the engine: an address, a count, an element type.

Read `buffers.py` first: numpy arrays, tensors and lists of blocks. `exporters.py` reads other
objects, `arguments.py` checks and copies arguments.
"""
