"""What an argument of a call is to the engine: an address, a count, an element type.

Read `buffers.py` first: numpy arrays, tensors and lists of blocks. `exporters.py` reads other
objects, `arguments.py` checks and copies what a call was given.
"""
