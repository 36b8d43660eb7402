"""A temporary folder for records of exceptions, the source of the report.

The supervisor's child makes it; if either of the two is killed, the other one removes it.
"""

import os
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError


def scratch_folder() -> Path:
    """Return the path of a new folder, which `make` makes."""
    # Not by tempfile, whose import costs an agent more than the rest here.
    return Path(os.environ.get("TMPDIR") or "/tmp", f"hccl_launch_{os.urandom(8).hex()}")


def make(folder: Path) -> None:
    """Make the folder, which only its owner may read; raise UsageError."""
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"cannot make a folder in {folder.parent}: {error.strerror}; set TMPDIR to one that "
            "this user can write"
        ) from error


def remove(folder: Path) -> None:
    """Remove the folder, if it is there."""
    try:
        folder.rmdir()  # empty, unless a rank raised
    except OSError:
        from shutil import rmtree  # slow to import

        rmtree(folder, ignore_errors=True)
