import pytest

from hccl_py.algorithms.topology import Topology
from hccl_py.transport.errors import InvalidArgumentError


def test_from_node_keys_groups_ranks_in_order_of_first_appearance() -> None:
    topology = Topology.from_node_keys(["b", "a", "b", "c", "a", "b"])
    assert topology.nodes == ((0, 2, 5), (1, 4), (3,))
    assert topology.world_size == 6
    assert topology.node_count == 3
    assert [topology.node_of(rank) for rank in range(6)] == [0, 1, 0, 2, 1, 0]
    assert [topology.local_rank(rank) for rank in range(6)] == [0, 0, 1, 0, 1, 2]
    assert topology.local_ranks(4) == (1, 4)


def test_one_node_holds_every_rank() -> None:
    assert Topology.one_node(3) == Topology(((0, 1, 2),))


def test_equal_topologies_are_equal_and_hash_alike() -> None:
    assert {Topology.from_node_keys("aab"), Topology(((0, 1), (2,)))} == {Topology(((0, 1), (2,)))}


@pytest.mark.parametrize(
    "nodes",
    [(), ((),), ((0,), ()), ((0, 1), (1,)), ((0, 2),), ((1,),), ((-1, 0),)],
)
def test_nodes_that_are_no_partition_are_refused(nodes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InvalidArgumentError, match="nodes: expected"):
        Topology(nodes)


def test_no_rank_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nodes: expected"):
        Topology.from_node_keys([])
