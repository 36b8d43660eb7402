"""How many elements a size is."""

import pytest

from hccl_py.bench.collective.cases import CASES


@pytest.mark.parametrize(
    ("op", "n", "size", "count", "num_bytes"),
    [
        ("all_reduce", 3, 1001, 250, 1000),
        ("all_reduce", 8, 1, 1, 4),
        ("all_gather", 3, 1001, 83, 996),
        ("reduce_scatter", 8, 4, 1, 32),
        ("all_to_all", 4, 65536, 4096, 65536),
        ("scatter", 4, 64, 4, 64),
        ("send_recv", 4, 64, 16, 64),
        ("barrier", 4, 0, 0, 0),
    ],
)
def test_count_of_size_rounds_down_to_whole_blocks(
    op: str, n: int, size: int, count: int, num_bytes: int
) -> None:
    assert CASES[op].count(size, "float32", n) == count
    assert CASES[op].num_bytes(count, "float32", n) == num_bytes
