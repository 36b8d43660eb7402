"""The ranks of a communicator: how they find each other, subset, split and shrink.

Ranks meet at the store of `environment.py` or `unique_id.py`, in one of its lives (`lives.py`).
`subset.py` makes a communicator of some ranks, also by colour, as a call of the larger one;
`shrink.py` makes one of the ranks that remain after a failure.
"""
