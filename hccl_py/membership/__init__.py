"""Which ranks belong to a communicator: how they meet, subset, split and shrink.

Ranks meet at the store that `environment.py` or `unique_id.py` names, in one of the lives that it
sees (`lives.py`). `subset.py` makes a communicator of some ranks, also by colour, by a call of the
larger one; `shrink.py` one of the ranks that remain after a failure.
"""
