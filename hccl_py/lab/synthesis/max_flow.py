"""Maximum flow by shortest augmenting paths (Edmonds and Karp), in integers, and the cut."""

from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

Vertex = TypeVar("Vertex", bound=Hashable)


def max_flow(
    capacities: Mapping[tuple[Vertex, Vertex], int], source: Vertex, target: Vertex
) -> tuple[int, set[Vertex]]:
    """Return the most that flows from source to target, and the source's side of a minimum cut."""
    left: defaultdict[Vertex, dict[Vertex, int]] = defaultdict(dict)
    for (tail, head), capacity in capacities.items():
        left[tail][head] = left[tail].get(head, 0) + capacity
        left[head].setdefault(tail, 0)
    flow = 0
    while True:
        before = _search(left, source, target)
        if target not in before:
            return flow, set(before)
        path = [target]
        while path[-1] != source:
            path.append(before[path[-1]])
        arcs = [(tail, head) for head, tail in zip(path, path[1:], strict=False)]
        most = min(left[tail][head] for tail, head in arcs)
        for tail, head in arcs:
            left[tail][head] -= most
            left[head][tail] += most
        flow += most


def _search(
    left: Mapping[Vertex, Mapping[Vertex, int]], source: Vertex, target: Vertex
) -> dict[Vertex, Vertex]:
    """Return where each vertex that can be reached was reached from."""
    before, todo = {source: source}, deque([source])
    while todo and target not in before:
        here = todo.popleft()
        for head, capacity in left[here].items():
            if capacity and head not in before:
                before[head] = here
                todo.append(head)
    return before
