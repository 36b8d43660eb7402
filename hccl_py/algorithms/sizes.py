"""Sizes in bytes, as people write them."""

import re

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def read_size(text: str) -> int:
    """Read a number of bytes of at least 1: digits and an optional K, M or G, 1024-based.

    Raises:
        ValueError: the text is no such size.
    """
    match = re.fullmatch(r"(\d+)([KMG]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise ValueError(f"expected a size such as 4, 64K or 1M, got {text!r}")
    return int(match[1]) * _SUFFIXES[match[2].upper()]
