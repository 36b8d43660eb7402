"""How the ranks of a communicator meet, authenticate and connect; `mesh.py` is the entry."""
