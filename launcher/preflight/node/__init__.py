"""A node's side of preflight. Start at `responder.py`, which answers the coordinator's questions.

facts.py     the node's facts about itself
server.py    the server that other nodes dial to test the network, over `transport/wire`
probe.py     dials another node: is it reachable, do full-size packets pass
"""
