"""Writes how each rank of this node ended, for the other ranks of the node.

A rank notices at once that a peer's connections close. Only the peer's parent knows the exit code
or the signal, so the agent, the parent, writes it to `FOLDER/PID` before it reaps the process.
`hccl_py.transport.exit_status` reads it.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path

VARIABLE = "HCCL_EXIT_STATUS_DIR"


def publish(folder: str) -> None:
    """From now on write the exit status of every child of this process to the folder."""

    def on_child(*_: object) -> None:
        for pid in children(os.getpid()):
            with suppress(OSError):
                # WNOWAIT leaves the child to elastic, which reaps it.
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                path = Path(folder, str(pid))
                if ended is not None and not path.exists():
                    exited = ended.si_code == os.CLD_EXITED
                    status = ended.si_status if exited else -ended.si_status
                    # Renamed into place: a reader never sees half a number.
                    path.with_suffix(".partial").write_text(str(status))
                    path.with_suffix(".partial").replace(path)

    signal.signal(signal.SIGCHLD, on_child)


def ended_at_s(folder: str, pid: int) -> float | None:
    """Return when a process ended, in seconds since the epoch, or None if it is not known."""
    with suppress(OSError):
        return Path(folder, str(pid)).stat().st_mtime
    return None


def children(pid: int) -> list[int]:
    """Return the processes that a process started: the ranks, where it is an agent."""
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
