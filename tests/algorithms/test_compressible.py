"""Algorithms with compressed edges: which stay right, and how often they round a value."""

from __future__ import annotations

import pytest
from node_shapes import nodes_by

from hccl_py.algorithms.choice.tuner import Cores, choose
from hccl_py.algorithms.table import ALGORITHMS, plans_for, verify_algorithm
from hccl_py.compression import MIN_BYTES
from hccl_py.plan.compress import compress_scale_out
from hccl_py.plan.contracts import COLLECTIVES, Contribution
from hccl_py.plan.language import PlanError, data, output
from hccl_py.plan.memory import Rounded, Value
from hccl_py.plan.simulate import Simulation

SHAPES = {
    shape: nodes_by(shape)
    for shape in ("ab", "abc", "aabb", "aaabb", "abbab", "abc" * 3, "aabbccd")
}
COMPRESSIBLE = [key for key, entry in ALGORITHMS.items() if entry.compressible]


def roundings(value: Value) -> int:
    """Count how often what a rank contributed was rounded on its way, at most."""
    tree = value.tree
    if isinstance(tree, Contribution):
        return 0
    if isinstance(tree, Rounded):
        return 1 + roundings(tree.value)
    return max(map(roundings, tree))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("collective", "name"), COMPRESSIBLE)
def test_compressible_algorithm_is_right_and_rounds_as_often_as_the_page_says(
    collective: str, name: str, shape: str
) -> None:
    """At most once between two nodes, twice between more, as docs/speed/compression.md says."""
    nodes = SHAPES[shape]
    verify_algorithm(collective, name, nodes, compressed=True)
    plans = [compress_scale_out(plan, nodes) for plan in plans_for(collective, name, nodes)]
    simulation = Simulation(plans, COLLECTIVES[collective], in_place=False)
    simulation.run()
    buffer = data if collective == "all_reduce" else output
    values = [
        simulation.memories[plan.rank].read(buffer[block])[0]
        for plan in plans
        for block in range(plan.shape[buffer])
    ]
    twice = collective == "all_reduce" and (name == "mesh" or len(nodes) > 2)
    assert max(map(roundings, values)) == (2 if twice else 1)


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling"])
def test_other_algorithms_are_not_the_same_bits_or_round_again(name: str) -> None:
    assert not ALGORITHMS["all_reduce", name].compressible
    with pytest.raises(PlanError):
        verify_algorithm("all_reduce", name, SHAPES["aaabb"], compressed=True)


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_forced_algorithm_counts_only_if_it_can_be_compressed(collective: str) -> None:
    nodes = SHAPES["aabb"]
    for name in ("ring", "mesh"):
        forced = {"HCCL_ALGORITHM": f"{collective}={name}"}
        chosen = choose(collective, 1 << 20, nodes, forced, compressed=True).algorithm
        assert chosen == ("mesh" if name == "mesh" else "hierarchical")


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_table_has_a_compressible_algorithm_between_nodes(collective: str) -> None:
    for exponent in range(MIN_BYTES.bit_length() - 1, 40):
        for cores in (Cores(), Cores(crowded=True)):
            chosen = choose(
                collective, 1 << exponent, SHAPES["aabb"], {}, compressed=True, cores=cores
            )
            assert ALGORITHMS[collective, chosen.algorithm].compressible
