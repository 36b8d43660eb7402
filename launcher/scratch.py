"""A folder of the launcher's own, for records of exceptions, of which the report is made."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hccl_py.launcher.exit_codes import UsageError


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder that only its owner may read, and remove it at the end; raise UsageError."""
    # Not by tempfile, whose import costs an agent more than all else here.
    folder = Path(os.environ.get("TMPDIR") or "/tmp", f"hccl_launch_{os.urandom(8).hex()}")
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"cannot make a folder in {folder.parent}: {error.strerror}; set TMPDIR to one that "
            "this user can write"
        ) from error
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove the folder, if it is there."""
    try:
        folder.rmdir()  # empty, unless a rank raised
    except OSError:
        from shutil import rmtree  # it imports every kind of archive

        rmtree(folder, ignore_errors=True)
