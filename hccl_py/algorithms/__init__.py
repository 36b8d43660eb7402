"""The algorithms: one file per family. They write plans and do not depend on bytes.

`table.py` lists them and makes their plans, `choice/` chooses one. Read `mesh.py` first.
"""
