"""Who dials whom: everybody at once for reachability, disjoint pairs for speed."""

_ALL_PAIRS = 8


def schedule(n: int) -> list[list[tuple[int, int]]]:
    """Return rounds in which each node is in one pair at most; each pair meets once.

    The circle method: one place stands, the others move on by one each round.
    """
    places = [*range(n), *([None] if n % 2 else [])]
    rounds = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        places = [places[0], places[-1], *places[1:-1]]
    return rounds


def neighbours(node: int, n: int) -> list[int]:
    """Return whom a node dials before a start: all, or of many those at distances 1, 2, 4, ...

    A firewall or a bad cable belongs to a node, so a few others find it, in both directions. The
    number of connections grows with n log n.
    """
    if n <= _ALL_PAIRS:
        return [other for other in range(n) if other != node]
    steps = [1 << k for k in range(n.bit_length()) if 1 << k < n]
    return sorted({(node + way * step) % n for step in steps for way in (1, -1)} - {node})
