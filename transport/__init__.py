"""The RoCE-like data plane: queue pairs, providers, and the engine that runs plans over them.

Knows nothing of which collective or algorithm it carries. `wire/` authenticates connections,
`bootstrap/` finds peers, `control/` spreads failures, `providers/` and `csrc/lanes` carry messages,
and `verbs/` offers queue pairs. `types.py` and `errors.py` hold the vocabulary.
"""
