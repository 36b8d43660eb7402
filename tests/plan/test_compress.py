"""Compressed edges: how a plan shows them, and what a proof rejects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hccl_py.algorithms.table import plan_for, plans_for
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Op, OpKind, PlanError, data
from hccl_py.plan.lower import lower
from hccl_py.plan.rendezvous import COPIED, rendezvous
from hccl_py.plan.verify import check_op, verify

TWO_NODES = ((0, 1), (2, 3, 4))


def test_hierarchical_compresses_the_edge_between_counterparts_only() -> None:
    plan = compress_scale_out(plan_for("all_reduce", "hierarchical", 2, TWO_NODES), TWO_NODES)
    assert str(plan).splitlines()[1:] == [
        "0  send data[1] to 3",
        "1  recv_reduce data[0] from 3 4",
        "2  send data[0] to 0~",
        "3  recv_reduce data[0] from 0~",
        "4  send data[0] to 3 4",
        "5  recv data[1] from 3",
    ]


def test_send_to_both_kinds_of_peers_becomes_two_the_compressed_one_first() -> None:
    plan = compress_scale_out(plan_for("all_reduce", "mesh", 2, TWO_NODES), TWO_NODES)
    lines = [line.split("  ", 1)[1] for line in str(plan).splitlines()[1:]]
    own = [line for line in lines if "data[2]" in line]
    reduced = "recv_reduce data[2] from 0~ 1~ 3 4"
    assert own == [reduced, "send data[2] to 0~ 1~", "send data[2] to 3 4"]


def test_compressed_peers_are_lowered_beside_the_peers() -> None:
    plan = plan_for("all_reduce", "mesh", 2, TWO_NODES)
    assert lower(plan).compressed == ()
    lowered = lower(compress_scale_out(plan, TWO_NODES))
    pairs = set(zip(lowered.peers, lowered.compressed, strict=True))
    assert pairs == {(0, True), (1, True), (3, False), (4, False)}


def test_compressed_send_is_never_announced_and_ends_earlier_announcements() -> None:
    """It rounds its source, which an earlier message may still be read from."""
    plain, compressed = Op(OpKind.SEND, (1,), None, data[0]), Op(OpKind.SEND, (2,), None, data[0])
    assert rendezvous([plain, compressed._replace(compressed=(2,))]) == [COPIED, COPIED]
    assert rendezvous([plain, compressed])[0] != COPIED


def test_exact_value_beside_a_rounded_one_is_not_the_same_bits() -> None:
    """The node of the owner would keep what others never get."""
    plans = list(plans_for("all_reduce", "mesh", TWO_NODES))
    marked = [compress_scale_out(plan, TWO_NODES) for plan in plans]

    def mates_first(ops: tuple[Op, ...]) -> tuple[Op, ...]:
        sends = [op for op in ops if op.kind is OpKind.SEND and op.src == data[2]][-2:]
        at = ops.index(sends[0])
        return (*ops[:at], sends[1], sends[0], *ops[at + 2 :])

    verify(marked, COLLECTIVES["all_reduce"])
    marked[2] = replace(marked[2], ops=mates_first(marked[2].ops))
    with pytest.raises(PlanError, match="ends wrong: holds .*, another rank"):
        verify(marked, COLLECTIVES["all_reduce"])


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        (Op(OpKind.SEND, (0, 1), None, data[0], (1,)), "for all of its peers or for none"),
        (Op(OpKind.RECV, (1,), data[0], None, (0,)), "none of the op's"),
        (Op(OpKind.SEND, (1,), None, data[0:2], (1,)), "one chunk"),
    ],
)
def test_malformed_compressed_op_is_refused(op: Op, problem: str) -> None:
    plan = plan_for("all_reduce", "mesh", 2, TWO_NODES)
    with pytest.raises(PlanError, match=problem):
        check_op(plan, 0, op)
