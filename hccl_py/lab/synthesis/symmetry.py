"""Moves that map a network to itself.

The number of a rank has digits, such as those of its rack and of its place there. A move adds to
some of them. If rates stay the same, the network looks alike from the ranks that moves map to one
another, and links that moves map to one another are alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from hccl_py.lab.synthesis.network import Arc, Network

_Axis = tuple[int, int]
"""A digit of a rank's number: its worth, and the number of its values."""


@dataclass(frozen=True)
class Symmetry:
    """The moves of a network.

    Attributes:
        moves: of each, where it takes each rank. They map no rank to itself, but for the first.
        roots: a rank of each kind: moves take these, together, to every rank once.
        kind_of: by link, the first one that moves map to it.
        num_alike: by the first link of a kind, how many there are.
    """

    moves: npt.NDArray[np.int32]
    roots: tuple[int, ...]
    kind_of: dict[Arc, Arc]
    num_alike: dict[Arc, int]


def symmetry_of(network: Network) -> Symmetry | None:
    """Return as many moves as there are; None: only that which moves nothing."""
    n = network.world_size
    known: dict[_Axis, list[int] | None] = {}

    def best_from(worth: int) -> tuple[int, tuple[_Axis, ...]]:
        """Return the number of moves that the digits from this one on allow, and their axes."""
        if worth == n:
            return 1, ()
        found: tuple[int, tuple[_Axis, ...]] = (1, ())
        for side in reversed(range(2, n // worth + 1)):
            if n % (worth * side):
                continue
            axis = worth, side
            if axis not in known:
                known[axis] = _extended(network, _shifted(n, axis, 1))
            many, axes = rest(worth * side)
            if known[axis] is not None:
                many, axes = many * side, (axis, *axes)
            found = max(found, (many, axes), key=lambda one: one[0])
        return found

    memory: dict[int, tuple[int, tuple[_Axis, ...]]] = {}

    def rest(worth: int) -> tuple[int, tuple[_Axis, ...]]:
        if worth not in memory:
            memory[worth] = best_from(worth)
        return memory[worth]

    many, axes = rest(1)
    if many == 1:
        return None
    moves = np.empty((many, n), np.int32)
    for at, by in enumerate(product(*(range(side) for _, side in axes))):
        where = np.arange(n)
        for axis, steps in zip(axes, by, strict=True):
            where = _shifted(n, axis, steps)[where]
        moves[at] = where
    roots = tuple(map(int, np.unique(moves.min(axis=0))))
    kind_of = _kinds(network, [known[axis] or [] for axis in axes])
    num_alike = dict.fromkeys(kind_of.values(), 0)
    for kind in kind_of.values():
        num_alike[kind] += 1
    return Symmetry(moves, roots, kind_of, num_alike)


def _shifted(n: int, axis: _Axis, steps: int) -> npt.NDArray[np.int64]:
    worth, side = axis
    ranks = np.arange(n)
    digit = ranks // worth % side
    return ranks + ((digit + steps) % side - digit) * worth


def _extended(network: Network, move: npt.NDArray[np.int64]) -> list[int] | None:
    """Return where a move takes ranks and switches; None: some rate would differ.

    A switch is recognized by its links to vertices that are known, first to ranks.
    """
    rates, size = network.kbit_per_s, len(network.names)
    beside: list[set[int]] = [set() for _ in range(size)]
    for tail, head in rates:
        beside[tail].add(head)
        beside[head].add(tail)
    image = dict(enumerate(map(int, move)))
    while len(image) < size:
        here: dict[object, list[int]] = {}
        there: dict[object, list[int]] = {}
        for switch in (v for v in range(size) if v not in image and beside[v] & image.keys()):
            links = [(v, rates.get((switch, v)), rates.get((v, switch))) for v in beside[switch]]
            near = [link for link in links if link[0] in image]
            here.setdefault(frozenset((image[v], *both) for v, *both in near), []).append(switch)
            there.setdefault(frozenset(near), []).append(switch)
        if not here or {key: len(one) for key, one in here.items()} != {
            key: len(one) for key, one in there.items()
        }:
            return None
        for key, switches in here.items():
            image |= dict(zip(switches, there[key], strict=True))
    is_alike = all(rates.get((image[a], image[b])) == rate for (a, b), rate in rates.items())
    return [image[vertex] for vertex in range(size)] if is_alike else None


def _kinds(network: Network, moves: Sequence[Sequence[int]]) -> dict[Arc, Arc]:
    kind_of: dict[Arc, Arc] = {}
    for first in sorted(network.kbit_per_s):
        waiting = [] if first in kind_of else [first]
        while waiting:
            tail, head = arc = waiting.pop()
            if arc not in kind_of:
                kind_of[arc] = first
                waiting += [(move[tail], move[head]) for move in moves]
    return kind_of
