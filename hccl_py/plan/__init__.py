"""An algorithm is data: symbolic chunks, four kinds of op, plans, and the proof of them.

Standard library only, and no I/O. An algorithm writes ops through a `PlanBuilder`; `verify` runs
the plans of all ranks symbolically; `render` spells one; `lower` makes it what the engine runs.
Which collectives and algorithms exist stands above: `hccl_py/plan/contracts.py` and
`hccl_py/algorithms/`. Read `builder.py` first, then `simulate.py` for the engine's rules.
"""

from hccl_py.plan.builder import Nodes, PlanBuilder
from hccl_py.plan.chunks import Buffer, BufferName, Chunk, data, input, output
from hccl_py.plan.contract import Contract, Contribution, Promise, Seat, Total
from hccl_py.plan.errors import PlanError
from hccl_py.plan.lower import LoweredPlan, lower
from hccl_py.plan.ops import Op, OpKind, Plan, Shape
from hccl_py.plan.render import render
from hccl_py.plan.verify import verify

__all__ = [
    "Buffer",
    "BufferName",
    "Chunk",
    "Contract",
    "Contribution",
    "LoweredPlan",
    "Nodes",
    "Op",
    "OpKind",
    "Plan",
    "PlanBuilder",
    "PlanError",
    "Promise",
    "Seat",
    "Shape",
    "Total",
    "data",
    "input",
    "lower",
    "output",
    "render",
    "verify",
]
