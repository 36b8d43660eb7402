"""Before a start few dial each other, in both ways."""

import pytest

from hccl_py.launcher.preflight.check import neighbours


@pytest.mark.parametrize("n", [1, 2, 8, 9, 64, 1024])
def test_neighbours_dial_each_other_and_are_few(n: int) -> None:
    dialled = {node: set(neighbours(node, n)) for node in range(n)}
    assert all(node in dialled[other] for node in dialled for other in dialled[node])
    assert all(node not in dialled[node] for node in dialled)
    assert max(map(len, dialled.values())) <= max(7, 2 * n.bit_length())
    assert n == 1 or all(dialled.values())
