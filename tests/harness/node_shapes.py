"""Nodes of ranks, by what tells them apart."""

from collections.abc import Hashable, Sequence

from hccl_py.plan.language import Nodes


def nodes_by(keys: Sequence[Hashable]) -> Nodes:
    """Group ranks by equal keys, nodes in order of first appearance: "abbab" is 2 ranks and 3."""
    shared = dict.fromkeys(keys)
    return tuple(tuple(rank for rank, one in enumerate(keys) if one == key) for key in shared)


def one_node(world_size: int) -> Nodes:
    return (tuple(range(world_size)),)
