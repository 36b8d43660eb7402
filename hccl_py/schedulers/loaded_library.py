"""Finds the file of a shared library that a process has loaded, by its memory map."""

import re
from contextlib import suppress


def loaded_library(name: str, process: str = "self") -> str | None:
    """Return the path of a library that a process has loaded.

    Args:
        name: a regular expression for the name before `.so`.
        process: its pid; "self" is this process.
    """
    found = None
    with suppress(OSError), open(f"/proc/{process}/maps") as maps:
        found = re.search(rf"/.*/{name}\.so[.\d]*$", maps.read(), re.MULTILINE)
    return found[0] if found else None
