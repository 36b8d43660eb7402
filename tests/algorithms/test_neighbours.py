import pytest

from hccl_py.algorithms.neighbours import NodeView, binomial_tree, complementary_trees

RANK_COUNTS = range(1, 40)


def test_node_view_looks_from_one_rank() -> None:
    view = NodeView.of(3, ((5, 0), (1, 3, 2), (4, 6)))
    assert (view.node, view.local_rank, view.mates) == ((1, 3, 2), 1, [2, 1])
    assert view.elsewhere == [(4, 6), (5, 0)]
    assert view.counterparts() == [6, 0]


def depths(parents: dict[int, int | None]) -> dict[int, int]:
    """Return the distance of every rank from the root; fails on a cycle."""
    result = {}
    for rank in parents:
        path = [rank]
        while (above := parents[path[-1]]) is not None:
            assert above not in path
            path.append(above)
        result[rank] = len(path) - 1
    return result


@pytest.mark.parametrize("n", RANK_COUNTS)
def test_binomial_tree_reaches_everyone_in_log2_steps(n: int) -> None:
    for root in {0, n // 2, n - 1}:
        seats = {rank: binomial_tree(rank, n, root) for rank in range(n)}
        parents = {rank: parent for rank, (parent, _) in seats.items()}
        assert [rank for rank, parent in parents.items() if parent is None] == [root]
        assert max(depths(parents).values()) <= (n - 1).bit_length()
        for rank, (_, children) in seats.items():
            assert sorted(children) == sorted(r for r, parent in parents.items() if parent == rank)


@pytest.mark.parametrize("n", RANK_COUNTS)
def test_two_trees_are_shallow_binary_and_complementary(n: int) -> None:
    seats = [complementary_trees(rank, n) for rank in range(n)]
    for tree in (0, 1):
        parents = {rank: seats[rank][tree][0] for rank in range(n)}
        assert list(parents.values()).count(None) == 1
        assert max(depths(parents).values()) <= n.bit_length()
        for rank in range(n):
            children = seats[rank][tree][1]
            assert len(children) <= 2
            assert sorted(children) == sorted(r for r, parent in parents.items() if parent == rank)
    if n > 1:
        inner_in_both = [rank for rank in range(n) if seats[rank][0][1] and seats[rank][1][1]]
        assert inner_in_both == []
