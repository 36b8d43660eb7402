"""Who dials whom."""

_ALL_PAIRS = 8


def neighbours(node: int, n: int) -> list[int]:
    """Return whom a node dials before a start: all, or of many those at distances 1, 2, 4, ...

    A firewall or a bad cable belongs to a node, so a few others find it, in both directions. The
    number of connections grows with n log n.
    """
    if n <= _ALL_PAIRS:
        return [other for other in range(n) if other != node]
    steps = [1 << k for k in range(n.bit_length()) if 1 << k < n]
    return sorted({(node + way * step) % n for step in steps for way in (1, -1)} - {node})
