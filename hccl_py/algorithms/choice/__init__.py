"""Which algorithm a call takes. All ranks choose alike, from what `shared.py` gets from rank 0.

`tuner.py` has the table of rules; `tuning.py` reads measured times, `cost.py` predicts others.
"""
