"""The control plane: how ranks exchange failures, agreements and clocks, off the data path.

loop.py                  the one control thread of a process
control_plane.py         messages between the ranks of all processes
    sockets.py, listener.py, strangers.py, message.py
coordination.py          what a communicator sees of it
participant.py           one rank of one communicator, made of parts without I/O:
    coordinator_client.py  heartbeats, reports, questions
    coordinator.py         from reports to one diagnosis for all
    agreement.py, survey.py, store.py
reporter.py              what it asks of a rank; `hccl_py/diagnosis` implements it
"""
