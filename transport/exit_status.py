"""How a process of this node ended, as its parent hccl-launch saw it.

Linux tells the exit status of a process only to its parent (to others from 6.15 on). The parent of
a rank is an agent of hccl-launch, which writes the status to a file: see `launcher/exit_status.py`.
"""

import os
import time
from pathlib import Path

VARIABLE = "HCCL_EXIT_STATUS_DIR"
_POLL_S = 0.005


def exit_status(pid: int, timeout_s: float = 0.1) -> int | None:
    """Return how a process of this node ended, in the convention of `subprocess`.

    Args:
        pid: the process, which has ended or is about to end.
        timeout_s: how long to wait for the launcher to notice the end.

    Returns:
        The exit code, minus the signal that killed it, or None where hccl-launch did not start it
        or wrote nothing in time.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return int(Path(folder, str(pid)).read_text())
        except (OSError, ValueError):
            if time.monotonic() >= deadline_s:
                return None
        time.sleep(_POLL_S)
