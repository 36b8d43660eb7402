"""A node's side of preflight. Start at `responder.py`, which answers the coordinator's questions.

facts.py     what the node says of itself
server.py    what other nodes dial to test the way here; `wire.py` is what both sides speak
probe.py     dials another node: is there a way, does it carry full-size packets
"""
