"""The RoCE-like data plane: queue pairs, providers, and the engine that runs plans over them.

Knows nothing of which collective or algorithm it carries. `bootstrap.py` finds and authenticates
peers, `types.py` and `errors.py` hold the vocabulary, `_core` is the C++ under `csrc/`.
"""
