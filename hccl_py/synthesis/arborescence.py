"""The cheapest tree from a root to all vertices (Y. J. Chu and T. H. Liu; J. Edmonds)."""

from collections.abc import Mapping


def arborescence(costs: Mapping[tuple[int, int], float], n: int, root: int) -> list[int]:
    """Return the parent of each vertex of 0..n-1 in the cheapest tree; the root's is itself.

    Every vertex must be reachable from the root.
    """
    # Each arc keeps what it was in the whole graph while cycles are contracted to one vertex.
    arcs = [(tail, head, cost, (tail, head)) for (tail, head), cost in costs.items()]
    parents = [root] * n
    for tail, head in _cheapest(arcs, list(range(n)), root):
        parents[head] = tail
    return parents


_Labelled = tuple[int, int, float, tuple[int, int]]


def _cheapest(arcs: list[_Labelled], vertices: list[int], root: int) -> list[tuple[int, int]]:
    best: dict[int, _Labelled] = {}
    for arc in arcs:
        tail, head, cost, _ = arc
        if head != root and tail != head and (head not in best or cost < best[head][2]):
            best[head] = arc
    cycle = _cycle(best, vertices, root)
    if not cycle:
        return [arc[3] for arc in best.values()]
    # One vertex stands for the cycle; to enter it costs what is saved by leaving out its arc there.
    merged, inside, entered = max(vertices) + 1, set(cycle), dict[tuple[int, int], int]()
    contracted: list[_Labelled] = []
    for tail, head, cost, label in arcs:
        if head in inside and tail not in inside:
            contracted.append((tail, merged, cost - best[head][2], label))
            entered[label] = head
        elif tail in inside and head not in inside:
            contracted.append((merged, head, cost, label))
        elif tail not in inside:
            contracted.append((tail, head, cost, label))
    rest = [vertex for vertex in vertices if vertex not in inside]
    chosen = _cheapest(contracted, [*rest, merged], root)
    door = next(entered[label] for label in chosen if label in entered)
    return [*chosen, *(best[vertex][3] for vertex in cycle if vertex != door)]


def _cycle(best: Mapping[int, _Labelled], vertices: list[int], root: int) -> list[int]:
    state: dict[int, int] = {}
    for start in vertices:
        path, here = [], start
        while here != root and here not in state:
            state[here] = start
            path.append(here)
            here = best[here][0]
        if here != root and state[here] == start and here in path:
            return path[path.index(here) :]
    return []
