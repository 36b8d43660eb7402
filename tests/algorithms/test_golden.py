"""A few plans spelt out: what a reader expects each family to do, and a change must mean to."""

import pytest
from node_shapes import one_node

from hccl_py.algorithms.table import plan_for
from hccl_py.plan.language import Nodes

FOUR = one_node(4)
TWO_NODES = ((0, 1), (2, 3, 4))

GOLDEN = [
    (
        ("all_reduce", "one_shot", 1, FOUR),
        """
        all_reduce/one_shot, rank 1 of 4, 1 chunks
        0  send data[0] to 2 3 0
        1  recv_reduce data[0] from 0 2 3
        """,
    ),
    (
        ("all_reduce", "mesh", 1, FOUR),
        """
        all_reduce/mesh, rank 1 of 4, 4 chunks
        0  send data[2] to 2
        1  send data[3] to 3
        2  send data[0] to 0
        3  recv_reduce data[1] from 0 2 3
        4  send data[1] to 2 3 0
        5  recv data[2] from 2
        6  recv data[3] from 3
        7  recv data[0] from 0
        """,
    ),
    (
        ("all_reduce", "ring", 1, one_node(3)),
        """
        all_reduce/ring, rank 1 of 3, 3 chunks
        0  send data[0] to 2
        1  recv_reduce data[2] from 0
        2  send data[2] to 2
        3  recv_reduce data[1] from 0
        4  send data[1] to 2
        5  recv data[0] from 0
        6  send data[0] to 2
        7  recv data[2] from 0
        """,
    ),
    (
        ("all_reduce", "tree", 1, FOUR),
        """
        all_reduce/tree, rank 1 of 4, 2 chunks
        0  recv_reduce data[0] from 0 2
        1  send data[0] to 3
        2  send data[1] to 2
        3  recv data[0] from 3
        4  send data[0] to 0 2
        5  recv data[1] from 2
        """,
    ),
    (
        ("all_reduce", "halving_doubling", 1, one_node(5)),
        """
        all_reduce/halving_doubling, rank 1 of 5, 5 chunks
         0  send data[4] to 4
         1  send data[0] to 4
         2  recv_reduce data[1:3] from 3
         3  send data[3] to 3
         4  recv_reduce data[1] from 4
         5  send data[2] to 2
         6  recv_reduce data[1] from 0
         7  send data[1] to 0
         8  recv data[2] from 2
         9  send data[1] to 4
        10  recv data[3] from 3
        11  send data[1:3] to 3
        12  recv data[4] from 4
        13  recv data[0] from 4
        """,
    ),
    (
        ("all_reduce", "recursive_doubling", 1, one_node(5)),
        """
        all_reduce/recursive_doubling, rank 1 of 5, 1 chunks
        0  send data[0] to 0
        1  recv_reduce data[0] from 0
        2  send data[0] to 3
        3  recv_reduce data[0] from 3
        """,
    ),
    (
        ("broadcast", "two_trees", 2, one_node(5), 0),
        """
        broadcast/two_trees, rank 2 of 5, root 0, 2 chunks
        0  recv data[0] from 4
        1  send data[0] to 1 3
        2  recv data[1] from 3
        """,
    ),
    (
        ("all_reduce", "hierarchical", 2, TWO_NODES),
        """
        all_reduce/hierarchical, rank 2 of 5, 2 chunks
        0  send data[1] to 3
        1  recv_reduce data[0] from 3 4
        2  send data[0] to 0
        3  recv_reduce data[0] from 0
        4  send data[0] to 3 4
        5  recv data[1] from 3
        """,
    ),
    (
        ("reduce", "tree", 2, FOUR, 0),
        """
        reduce/tree, rank 2 of 4, root 0, 1 chunks
        0  copy data[0] to scratch[0] like data[0]
        1  recv_reduce scratch[0] like data[0] from 3
        2  send scratch[0] like data[0] to 0
        """,
    ),
    (
        ("barrier", "dissemination", 0, one_node(5)),
        """
        barrier/dissemination, rank 0 of 5, 1 chunks
        0  send data[0] to 1
        1  recv data[0] from 4
        2  send data[0] to 2
        3  recv data[0] from 3
        4  send data[0] to 4
        5  recv data[0] from 1
        """,
    ),
]


@pytest.mark.parametrize(("arguments", "text"), GOLDEN, ids=[f"{a[0]}-{a[1]}" for a, _ in GOLDEN])
def test_plan_reads_as_expected(
    arguments: tuple[str, str, int, Nodes, int | None], text: str
) -> None:
    rendered = [line.strip() for line in str(plan_for(*arguments)).splitlines()]
    assert rendered == [line.strip() for line in text.strip().splitlines()]
