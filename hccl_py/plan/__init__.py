"""An algorithm is data: symbolic chunks, four kinds of op, plans, and the proof of them.

Standard library only, and no I/O. An algorithm writes ops through a `PlanBuilder` (`language.py`,
read it first); `verify.py` runs the plans of all ranks symbolically, under the engine's rules in
`simulate.py`; `lower.py` converts a plan to the engine's form. The algorithms are a layer above.
"""
