"""What tests of whole jobs share."""

import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hccl_py.schedulers.ports import free_port


@pytest.fixture
def port() -> int:
    """Find a port for rank 0's store, with one above that is free on all addresses, too."""
    while True:
        found = free_port()
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", found + 1))
            return found


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a script that knows its rank, and return its path."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        # Unbuffered, print() writes text and line end apart, and lines of two ranks mix.
        say = "def say(text): os.write(1, f'{text}\\n'.encode())"
        path.write_text(f"import os\nrank = int(os.environ['RANK'])\n{say}\n{body}")
        return path

    return write
