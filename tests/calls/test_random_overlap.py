"""Calls on random blocks of one buffer: refused by the page's rule, or with the values of copies.

The rule and the values are written here once more, from docs/api/communicator.md.
"""

from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from thread_ranks import ThreadRanks

from hccl_py import Communicator, InvalidArgumentError, group

KINDS = "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"
Block = tuple[int, int]
"""Where it begins in the buffer, and its number: equal ones of output and input may be the same."""


class Case(NamedTuple):
    """A call on blocks of `count` elements, which begin at these places of a buffer."""

    kind: str
    count: int
    many: list[int]
    """Of the argument with a block for each rank."""
    others: list[int]
    """Of the other argument."""
    is_own: bool
    """The other argument of each rank is its own block of the first."""
    is_whole: bool
    """The first argument is one buffer."""
    root: int

    def blocks(self, rank: int) -> tuple[list[Block], list[Block]]:
        """Return outputs and inputs of a rank."""
        many = list(zip(self.many, range(len(self.many)), strict=True))
        if self.kind == "all_to_all":
            return many, [(place, i) for i, place in enumerate(self.others)]
        one = [(self.many[rank] if self.is_own else self.others[0], rank)]
        if self.kind in ("gather", "scatter") and rank != self.root:
            many, one = [], [(self.others[0], rank)]
        return (many, one) if self.kind in ("all_gather", "gather") else (one, many)

    def is_allowed(self, rank: int) -> bool:
        outputs, inputs = self.blocks(rank)
        ends = sorted(place for place, _ in outputs)
        if any(other - one < self.count for one, other in pairwise(ends)):
            return False
        if self.kind == "all_to_all" and run(outputs, self.count) == run(inputs, self.count) != ():
            return True
        return not any(
            abs(output[0] - given[0]) < self.count and output != given
            for output in outputs
            for given in inputs
        )

    def make(self, comm: Communicator, buffer: Any) -> None:
        outputs, inputs = self.blocks(comm.rank)
        rooted = (self.root,) if self.kind in ("gather", "scatter") else ()
        getattr(comm, self.kind)(self._given(buffer, outputs), self._given(buffer, inputs), *rooted)

    def _given(self, buffer: Any, blocks: list[Block]) -> Any:
        if not blocks:
            return None
        if len(blocks) == 1 or (self.is_whole and run(blocks, self.count)):
            return buffer[blocks[0][0] : blocks[0][0] + len(blocks) * self.count]
        return [buffer[place : place + self.count] for place, _ in blocks]

    def result(self, before: list[np.ndarray[Any, Any]], rank: int) -> np.ndarray[Any, Any]:
        after = before[rank].copy()
        for place, number in self.blocks(rank)[0]:
            source = self.root if self.kind == "scatter" else number
            sources = range(len(before)) if self.kind == "reduce_scatter" else (source,)
            parts = []
            for each in sources:
                inputs = self.blocks(each)[1]
                begin = inputs[rank if len(inputs) > 1 else 0][0]
                parts.append(before[each][begin : begin + self.count])
            after[place : place + self.count] = sum(parts)
        return after


def run(blocks: list[Block], count: int) -> tuple[int, ...]:
    """Return where blocks that follow one another begin and end, or nothing."""
    if any(other - one != count for (one, _), (other, _) in pairwise(blocks)):
        return ()
    return blocks[0][0], blocks[-1][0]


def random_case(random: Random, n: int, count: int) -> Case:
    def places() -> list[int]:
        begin = random.randrange(3 * n * count)
        aligned = random.sample(range(4 * n - 1), n)
        return random.choice(
            [
                [begin + i * count for i in range(n)],
                [place * count for place in aligned],
                [random.randrange(4 * n * count - count) for _ in range(n)],
            ]
        )

    many = places()
    others = random.choice([places(), list(many)])
    flags = random.random() < 0.4, random.random() < 0.6
    return Case(random.choice(KINDS), count, many, others, *flags, random.randrange(n))


def check(
    case: Case, before: list[np.ndarray[Any, Any]], allowed: list[bool], comm: Communicator
) -> None:
    mine, expected = before[comm.rank], case.result(before, comm.rank)
    if all(allowed):
        for buffer in (mine.copy(), torch.tensor(mine)):
            case.make(comm, buffer)
            np.testing.assert_array_equal(buffer, expected)
        with group():
            case.make(comm, buffer := mine.copy())
        np.testing.assert_array_equal(buffer, expected)
    elif not allowed[comm.rank]:  # the others would wait
        with pytest.raises(InvalidArgumentError, match="memory apart"):
            case.make(comm, torch.tensor(mine))


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        ("aab", 3),
        *(
            pytest.param(nodes, count, marks=pytest.mark.nightly("attacks"))
            for nodes in ("aa", "aab", "ab", "aabbc")
            for count in (3, 5000, 70_001)
        ),
    ],
)
def test_random_blocks_are_refused_by_the_rule_or_give_the_values_of_copies(
    nodes: str, count: int
) -> None:
    n, outcomes = len(nodes), set()
    with ThreadRanks(nodes) as ranks:
        for seed in range(100):
            case = random_case(Random(seed), n, count)
            numbers = np.random.default_rng(seed)
            before = [numbers.integers(0, 99, 4 * n * count) for _ in range(n)]
            allowed = [case.is_allowed(rank) for rank in range(n)]

            ranks.run(partial(check, case, before, allowed))
            outcomes.add((case.kind, all(allowed)))
    assert len(outcomes) == 2 * len(KINDS), "each kind was taken, and refused"
