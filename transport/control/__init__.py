"""The control plane: how ranks exchange failures, agreements and clocks, off the data path.

loop.py            the one control thread of a process
control_plane.py   messages between the ranks of all processes (sockets.py, message.py)
coordination.py    its interface for a communicator
participant.py     one rank of one communicator, without I/O: asks the coordinator, and can serve
                   as one (coordinator.py, agreement.py, store.py)
reporter.py        the interface that `hccl_py/diagnosis` implements for each rank
"""
