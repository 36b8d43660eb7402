"""The algorithms: one file per family. They write plans and know nothing of bytes.

`table.py` lists them and makes plans of them, `tuner.py` chooses. Read `mesh.py` first.
"""
