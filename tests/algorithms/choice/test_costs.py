"""The table of `docs/internals/algorithms.md`: what all ranks' plans cost, for the tuner."""

from __future__ import annotations

from pathlib import Path

from node_shapes import nodes_by

from hccl_py.algorithms.choice.cost import cost_of_plans
from hccl_py.algorithms.table import ALGORITHMS, plans_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Buffer, OpKind, Plan

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "algorithms.md"
RANK_COUNTS = (2, 8, 16)


def sent_by(plan: Plan) -> tuple[int, float]:
    """Count the messages that a rank sends, and what they carry: of its data, or in blocks."""
    sends = [op for op in plan.ops if op.kind is OpKind.SEND and op.src is not None]
    spans = [(len(op.peers), op.src.end - op.src.begin) for op in sends if op.src]
    parts = plan.shape[Buffer.DATA] or 1
    return sum(peers for peers, _ in spans), sum(peers * span for peers, span in spans) / parts


def row(collective: str, name: str) -> str:
    steps, messages, carried = [], [], 0.0
    for n in RANK_COUNTS:
        nodes = nodes_by([rank * 2 // n for rank in range(n)])
        root = 0 if COLLECTIVES[collective].rooted else None
        plans = plans_for(collective, name, nodes, root)
        cost = cost_of_plans(dict(enumerate(plans)), nodes)
        assert cost is not None
        steps.append("{}+{}".format(*cost.rounds))
        sent = list(map(sent_by, plans))
        messages.append(max(count for count, _ in sent))
        carried = max(amount for _, amount in sent) if n == 8 else carried
    unit = "" if plans[0].shape.data_chunks else " blocks"
    counts = " | ".join(", ".join(map(str, counts)) for counts in (steps, messages))
    return f"| {collective} | {name} | {counts} | {carried:.4g}{unit} |"


def test_table_of_costs_is_that_of_the_plans() -> None:
    lines = PAGE.read_text().splitlines()
    assert [line for line in lines if line.split(" | ")[0][2:] in COLLECTIVES] == [
        row(collective, name) for collective, name in ALGORITHMS
    ]
