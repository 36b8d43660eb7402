"""What an argument of a call is to the engine: an address, a count, an element type.

buffers         numpy arrays, tensors and lists of blocks; read first
exporters       other objects, through the buffer protocol or DLPack
element_types   element types by number, and what can be reduced
checks          checks of the other arguments
copies          the copies of calls that are not in place
registered      memory that the ranks of a node read and write directly
scaled          sums with a factor for each rank
"""
