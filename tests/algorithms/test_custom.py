"""Files, rules and names of algorithms that users write: wrong ones get one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from node_shapes import nodes_by, one_node

from hccl_py.algorithms.custom import algorithm
from hccl_py.algorithms.loading import in_effect, loaded
from hccl_py.plan.language import PlanBuilder
from hccl_py.transport.errors import InvalidArgumentError

FILE = """
import hccl_py

@hccl_py.algorithm("all_reduce", when=lambda n, nodes: n // 0)
def mine(me, n, plan):
    plan.send([0], "no chunk")

def bare(me, n, plan): ...
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def nothing(me: int, n: int, plan: PlanBuilder) -> None:
    pass


def test_sizes_are_whole_classes_up_to_a_power_of_two() -> None:
    one = algorithm("all_reduce", min_bytes=8, max_bytes=32)(nothing)
    assert [size for size in range(70) if one.fits(size)] == list(range(9, 33))
    assert all(map(algorithm("gather")(nothing).fits, (0, 1, 1 << 40)))


def test_chunks_may_depend_on_ranks_and_nodes() -> None:
    one = algorithm("all_reduce", chunks=lambda n, nodes: 10 * n + len(nodes))(nothing)
    assert one.plan(0, nodes_by("aab"), None).shape.data_chunks == 32


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: algorithm("allreduce"), "expected one of all_reduce, .*, got 'allreduce'"),
        (lambda: algorithm("reduce", max_bytes=1000), "max_bytes: expected a power of two"),
        (lambda: algorithm("gather", min_bytes=8), "no rank knows the size of a whole gather"),
        (lambda: in_effect([nothing], {}), "under @hccl_py.algorithm.*, got <function"),  # type: ignore[list-item]
    ],
)
def test_wrong_rule_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        make()


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("{}:mine", "mine.py:mine: expected an algorithm of reduce, got one of all_red"),
        ("{}:bare", "expected a function under @hccl_py.algorithm.*mine.py has: mine$"),
        ("{}.not:mine", "expected a Python file, .* cannot be read"),
    ],
)
def test_wrong_file_is_refused(place: str, problem: str, file: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        in_effect([], {"HCCL_ALGORITHM": f"ring,reduce={place.format(file)}"})


def test_file_that_raises_is_named_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(InvalidArgumentError, match="broken.py: ZeroDivisionError: division"):
        loaded(f"{tmp_path}/broken.py:mine")


def test_error_in_a_users_function_names_rank_and_line(file: Path) -> None:
    mine = loaded(f"{file}:mine", "all_reduce")
    with pytest.raises(InvalidArgumentError, match="rank 1 of 2: AttributeError in line 6: 'str'"):
        mine.plan(1, one_node(2), None)
    with pytest.raises(InvalidArgumentError, match="`when` of 2 ranks: ZeroDivisionError in line"):
        mine.serves(one_node(2))


def test_table_named_in_the_environment_replaces_algorithms_in_code(file: Path) -> None:
    given = [algorithm("all_reduce")(nothing), algorithm("broadcast")(nothing)]

    def names(text: str) -> list[str]:
        return [one.name for one in in_effect(given, {"HCCL_ALGORITHM": text})]

    assert names("") == names("all_gather=ring") == ["test_custom.py:nothing"] * 2
    assert names("all_reduce=ring") == ["test_custom.py:nothing"]
    assert names(f"{file}:mine,broadcast=tree") == ["mine.py:mine"]
