from typing import Any

import pytest
from node_shapes import nodes_by, one_node

from hccl_py.algorithms.choice import tuner
from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuner import TABLE, Cores, min_message_bytes, size_class
from hccl_py.algorithms.choice.tuning import Tuning
from hccl_py.algorithms.table import ALGORITHMS
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import InvalidArgumentError

ONE_NODE = one_node(8)
TWO_NODES = nodes_by("aaaabbbb")
SIXTEEN = nodes_by("a" * 8 + "b" * 8)
FASTER_BY_BRUCK = {"mesh": 2.0, "direct": 2.0, "bruck": 1.0}


def choose(
    collective: str,
    num_bytes: int,
    nodes: Nodes,
    environ: dict[str, str],
    tuning: Tuning | None = None,
    **known: Any,
) -> str:
    return tuner.choose(collective, num_bytes, nodes, environ, tuning=tuning, **known).algorithm


@pytest.mark.parametrize(
    ("nodes", "num_bytes", "expected"),
    [
        (one_node(2), 1 << 16, "one_shot"),
        (one_node(2), (1 << 16) + 1, "mesh"),
        (ONE_NODE, 0, "one_shot"),
        (ONE_NODE, 4, "one_shot"),
        (ONE_NODE, 1 << 11, "one_shot"),
        (ONE_NODE, (1 << 11) + 1, "mesh"),
        (ONE_NODE, 1 << 26, "mesh"),
        (one_node(17), 4, "mesh"),
        (TWO_NODES, 4, "leader"),
        (TWO_NODES, 1 << 14, "leader"),
        (TWO_NODES, (1 << 14) + 1, "hierarchical"),
        (TWO_NODES, 1 << 26, "hierarchical"),
        (SIXTEEN, 4, "leader"),
    ],
)
def test_all_reduce_default(nodes: Nodes, num_bytes: int, expected: str) -> None:
    assert choose("all_reduce", num_bytes, nodes, {}) == expected


@pytest.mark.parametrize("num_ranks", [4, 8, 16])
def test_ranks_that_share_cores_take_fewer_steps(num_ranks: int) -> None:
    nodes, crowded = one_node(num_ranks), Cores(crowded=True)
    assert choose("all_reduce", 1 << 12, nodes, {}, cores=crowded) == "one_shot"
    assert choose("all_reduce", 1 << 13, nodes, {}) == "mesh"
    assert choose("all_reduce", 1 << 16, nodes, {}, cores=crowded) == "mesh"


def test_a_root_reduces_alone_up_to_a_size() -> None:
    for num_ranks, most in ((8, 1 << 14), (16, 1 << 13)):
        assert choose("reduce", most, one_node(num_ranks), {}) == "direct"
        assert choose("reduce", most + 1, one_node(num_ranks), {}) == "mesh"


@pytest.mark.parametrize(
    ("cores", "expected"), [(None, "mesh"), (1, "direct"), (2, "direct"), (3, "mesh")]
)
def test_reduce_is_shared_where_there_are_cores_for_it(cores: int | None, expected: str) -> None:
    known = Cores(cores)
    assert choose("reduce", 1 << 20, ONE_NODE, {}, cores=known) == expected
    assert choose("reduce", 1 << 20, TWO_NODES, {}, cores=known) == "hierarchical"
    assert choose("reduce", 1 << 20, ONE_NODE, {"HCCL_ALGORITHM": "mesh"}, cores=known) == "mesh"


@pytest.mark.parametrize(
    "collective", ["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"]
)
def test_leaders_send_more_where_ranks_share_cores(collective: str) -> None:
    crowded = Cores(crowded=True)
    for num_bytes, expected in ((1 << 16, "leader"), ((1 << 16) + 1, "hierarchical")):
        assert choose(collective, num_bytes, TWO_NODES, {}, cores=crowded) == expected
    assert choose(collective, 1 << 16, TWO_NODES, {}) == "hierarchical"
    assert choose(collective, 4, TWO_NODES, {}) == "leader"


def test_a_leader_does_without_what_it_cannot_take() -> None:
    crowded = Cores(crowded=True)
    for collective in ("all_reduce", "reduce_scatter"):
        compressed = choose(collective, 1 << 16, TWO_NODES, {}, cores=crowded, compressed=True)
        assert compressed == "hierarchical"
    for collective in ("all_gather", "reduce_scatter"):
        assert choose(collective, 4, TWO_NODES, {}, equal_blocks=False) == "hierarchical"


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nodes", [one_node(1), ONE_NODE, TWO_NODES, SIXTEEN])
def test_every_collective_has_an_algorithm_at_every_size(collective: str, nodes: Nodes) -> None:
    for exponent in range(40):
        assert (collective, choose(collective, 1 << exponent, nodes, {})) in ALGORITHMS


def test_choice_is_constant_within_a_size_class() -> None:
    for low in (1 << exponent for exponent in range(1, 28)):
        sizes = (low + 1, low + low // 2 + 1, 2 * low)
        assert len({size_class(num_bytes) for num_bytes in sizes}) == 1
        for row in TABLE:
            assert len({choose(row.collective, size, ONE_NODE, {}) for size in sizes}) == 1
            assert len({choose(row.collective, size, TWO_NODES, {}) for size in sizes}) == 1


def test_table_limits_are_powers_of_two_and_names_exist() -> None:
    for row in TABLE:
        assert (row.collective, row.algorithm) in ALGORITHMS
        if row.max_bytes is not None:
            assert 1 << size_class(row.max_bytes) == row.max_bytes


def test_bare_override_holds_where_the_name_exists() -> None:
    environ = {"HCCL_ALGORITHM": "ring"}
    assert choose("all_reduce", 4, ONE_NODE, environ) == "ring"
    assert choose("all_gather", 4, ONE_NODE, environ) == "ring"
    assert choose("broadcast", 4, ONE_NODE, environ) == "direct"


def test_named_overrides_hold_for_their_collective_only() -> None:
    environ = {"HCCL_ALGORITHM": " all_reduce = ring, broadcast=tree,"}
    assert choose("all_reduce", 4, TWO_NODES, environ) == "ring"
    assert choose("broadcast", 4, TWO_NODES, environ) == "tree"
    assert choose("all_gather", 4, TWO_NODES, environ) == "leader"


def test_override_holds_up_to_its_size() -> None:
    environ = {"HCCL_ALGORITHM": "all_to_all=leader@100K, ring@1G, broadcast = tree @ 4"}
    assert choose("all_to_all", 1 << 16, TWO_NODES, environ) == "leader"
    for size in ((1 << 16) + 1, 100 << 10, 1 << 17):  # one class of sizes, one plan
        assert choose("all_to_all", size, TWO_NODES, environ) == "direct"
    assert choose("all_to_all", 0, TWO_NODES, environ, equal_blocks=False) == "direct"
    assert choose("all_reduce", 1 << 30, TWO_NODES, environ) == "ring"
    assert choose("all_reduce", (1 << 30) + 1, TWO_NODES, environ) == "hierarchical"
    assert choose("broadcast", 4, ONE_NODE, environ) == "tree"
    assert choose("broadcast", 5, ONE_NODE, environ) == "direct"


def test_overrides_of_a_collective_go_in_the_order_of_their_limits() -> None:
    for text in ("ring,all_reduce=tree@64K,mesh@1K", "mesh@1K,all_reduce=tree@64K,ring"):
        chosen = [
            choose("all_reduce", size, ONE_NODE, {"HCCL_ALGORITHM": text})
            for size in (4, 1 << 10, (1 << 10) + 1, 1 << 16, 1 << 17)
        ]
        assert chosen == ["mesh", "mesh", "tree", "tree", "ring"]
    environ = {"HCCL_ALGORITHM": "ring,tree"}
    assert choose("all_reduce", 4, ONE_NODE, environ) == "tree", "the last one counts"


def test_limit_that_is_no_size_is_named() -> None:
    for wrong in ("leader@", "leader@-1", "leader@1.5", "leader@1K@2K", "leader@0", "leader@1T"):
        with pytest.raises(InvalidArgumentError, match=f"{wrong}': after the @: expected a size"):
            choose("all_to_all", 4, TWO_NODES, {"HCCL_ALGORITHM": f"all_to_all={wrong}"})
    with pytest.raises(InvalidArgumentError, match="there is no 'all_to_all=rings'"):
        choose("all_to_all", 4, TWO_NODES, {"HCCL_ALGORITHM": "all_to_all=rings@1K"})


def test_equal_blocks_are_needed_only_where_they_are_known() -> None:
    environ = {"HCCL_ALGORITHM": "bruck"}
    for collective, other in (("all_gather", "mesh"), ("all_to_all", "direct")):
        assert choose(collective, 4, ONE_NODE, environ) == "bruck"
        assert choose(collective, 4, ONE_NODE, environ, equal_blocks=False) == other
    names = ("all_gather", "all_to_all")
    curves = {(name, way): ((4, us),) for name in names for way, us in FASTER_BY_BRUCK.items()}
    tuning = Tuning((8,), 8.0, (None,) * len(NUMBERS), curves)
    assert choose("all_gather", 4, ONE_NODE, {}, tuning) == "bruck"
    assert choose("all_gather", 4, ONE_NODE, {}, tuning, equal_blocks=False) == "mesh"
    assert choose("all_to_all", 4, ONE_NODE, {}, tuning) == "direct"
    # A rank with one buffer or equal lists cannot know the others': no default may depend on it.
    assert {row.algorithm for row in TABLE if row.collective == "all_to_all"} == {"direct"}


def test_a_file_from_before_the_tables_choice_existed_changes_nothing() -> None:
    tuning = Tuning((8,), 8.0, (None,) * len(NUMBERS), {("all_gather", "bruck"): ((4, 1.0),)})
    chosen = tuner.choose("all_gather", 4, ONE_NODE, {}, tuning=tuning)
    assert chosen.algorithm == "mesh"
    assert "not measured: run hccl-bench --tune again" in chosen.why


@pytest.mark.parametrize("text", ["rng", "all_reduce=direct", "allreduce=ring", "all_reduce="])
def test_unknown_override_lists_what_there_is(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="HCCL_ALGORITHM.*all_reduce: one_shot, mesh"):
        choose("barrier", 4, ONE_NODE, {"HCCL_ALGORITHM": text})


def test_small_messages_are_cut_only_where_wire_and_memory_overlap() -> None:
    one_kind_of_way = [min_message_bytes(nodes) for nodes in (ONE_NODE, nodes_by("ab"))]
    assert min_message_bytes(TWO_NODES) < min(one_kind_of_way)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("nodes", [one_node(2), ONE_NODE, TWO_NODES])
@pytest.mark.parametrize("setting", ["", "ring@64K", "mesh@3000,ring@1M"])
@pytest.mark.parametrize("cores", [Cores(), Cores(2, crowded=True)])
def test_a_choice_names_every_size_class_that_it_is_for(
    collective: str, nodes: Nodes, setting: str, cores: Cores
) -> None:
    def choice(size: int) -> tuner.Choice:
        return tuner.choose(collective, 1 << size, nodes, {"HCCL_ALGORITHM": setting}, cores=cores)

    choices = [choice(size) for size in range(65)]
    assert [one for size, one in enumerate(choices) if size not in one.classes] == []
    assert all(choices[size] == one for one in choices for size in one.classes)
