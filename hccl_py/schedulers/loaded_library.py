"""Which file of a shared library a process has loaded, by its memory map."""

import re
from contextlib import suppress


def loaded_library(name: str, process: str = "self") -> str | None:
    """Return the path of a library that a process has loaded.

    Args:
        name: a regular expression for what stands before `.so`.
        process: its number; "self" is this one.
    """
    found = None
    with suppress(OSError), open(f"/proc/{process}/maps") as maps:
        found = re.search(rf"/.*/{name}\.so[.\d]*$", maps.read(), re.MULTILINE)
    return found[0] if found else None
