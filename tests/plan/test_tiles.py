"""Windows of tiles: the plan that the engine runs in them, and its replies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from node_shapes import one_node

from hccl_py.algorithms.table import ALGORITHMS, contract_for, plans_for
from hccl_py.plan.language import OpKind, PlanError
from hccl_py.plan.rendezvous import rendezvous
from hccl_py.plan.tiles import in_window
from hccl_py.plan.verify import verify

BY_STEP = [key for key, entry in ALGORITHMS.items() if entry.by_step]


@pytest.mark.parametrize("key", BY_STEP)
@pytest.mark.parametrize("num_tiles", [1, 2, 3])
def test_reply_in_a_window_is_the_message_that_the_engine_counts(
    key: tuple[str, str], num_tiles: int
) -> None:
    """`Channel::rendezvous_of`: reply k of tile i is message (k - 1) * tiles + i + 1."""
    for plan in plans_for(*key, one_node(4)):
        windowed = in_window(plan, num_tiles)
        of_op = dict(zip(windowed.ops, rendezvous(windowed.ops), strict=True))
        one_tile = in_window(plan, 1)
        assert one_tile.ops == plan.ops
        num_replies = 0
        for op, reply in zip(plan.ops, rendezvous(plan.ops), strict=True):
            for tile in range(num_tiles if op.kind is OpKind.SEND and reply > 0 else 0):
                by = tile * plan.shape.data_chunks
                assert op.src is not None
                moved = op.src._replace(begin=op.src.begin + by, end=op.src.end + by)
                assert of_op[op._replace(src=moved)] == (reply - 1) * num_tiles + tile + 1
                num_replies += 1
        assert num_replies > 0


def test_plan_that_is_right_tile_by_tile_and_not_in_a_window_is_refused() -> None:
    """A step of several messages: a tile would receive what another tile has sent."""
    key = "all_reduce", "mesh"
    plans = plans_for(*key, one_node(2))
    verify(plans, contract_for(*key))
    late = [replace(plan, steps=(1, len(plan.ops))) for plan in plans]
    with pytest.raises(PlanError, match="of another length"):
        verify([in_window(plan, 2) for plan in late], contract_for(*key))
