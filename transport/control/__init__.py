"""How the ranks of a communicator speak about it, off the data path: failures, agreements, clocks.

    plane.py, sockets.py     one thread a process, its encrypted sockets
    doorway.py               keeps strangers few
    coordination.py          what a communicator holds of it: states, agreements, a store, clocks
    place.py                 one rank of one communicator in it, made of parts without I/O:
        participant.py         heartbeats, who coordinates now, reports
        coordinator.py         the serving side: from reports to one verdict for all
        agreements.py, store_host.py, clocks.py
    principal.py             whom a place speaks for: an engine and its judge
    message.py, contact.py, timing.py

Reports and verdicts are opaque here; `hccl_py/diagnosis/` knows what they mean.
"""
