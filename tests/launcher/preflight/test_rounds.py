"""Every pair meets once, and a round holds a node once; before a start few dial, in both ways."""

from __future__ import annotations

from itertools import combinations

import pytest

from hccl_py.launcher.preflight.rounds import neighbours, schedule


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 64])
def test_schedule_lets_every_pair_meet_once_in_disjoint_rounds(n: int) -> None:
    rounds = schedule(n)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == list(combinations(range(n), 2))
    assert all(len({node for pair in pairs for node in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= n


@pytest.mark.parametrize("n", [1, 2, 8, 9, 64, 1024])
def test_neighbours_dial_each_other_and_are_few(n: int) -> None:
    dialled = {node: set(neighbours(node, n)) for node in range(n)}
    assert all(node in dialled[other] for node in dialled for other in dialled[node])
    assert all(node not in dialled[node] for node in dialled)
    assert max(map(len, dialled.values())) <= max(7, 2 * n.bit_length())
    assert n == 1 or all(dialled.values())
