"""The algorithms: one file per family, one table. They write plans and know nothing of bytes.

`table.py` lists them, `planning.py` makes plans of them. Read `mesh.py` first.
"""

from hccl_py.algorithms.planning import plan_for, plans_for, verify_algorithm
from hccl_py.algorithms.table import ALGORITHMS, Algorithm, names_for

__all__ = ["ALGORITHMS", "Algorithm", "names_for", "plan_for", "plans_for", "verify_algorithm"]
