"""Tools of the nightly tier from wheels, in folders of their own: they may not meet torch's parts.

They are installed once, into build/launchers.
"""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "build" / "launchers"
_LIMIT_S = 300.0


@functools.cache
def installed(wheel: str, program: str) -> Path:
    """Return the folder of a wheel, in which `program` is; skip the test without it."""
    folder = _FOLDER / wheel
    if not (folder / program).exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--ignore-installed"]
        command = [*pip, "--prefix", str(folder), wheel]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            pytest.skip(f"pip install {wheel}: {done.stderr.strip().splitlines()[-1]}")
    return folder
