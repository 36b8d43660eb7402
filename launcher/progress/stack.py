"""Where a rank is, by py-spy, which needs nothing of the rank but its process id."""

import shutil
import subprocess
import sys
from pathlib import Path

_TIMEOUT_S = 20.0
_MAX_LINES = 30
_MARK = "\0"


def stack_of(pid: int) -> str:
    """Return the stack of a Python process, or why there is none; empty: there is no py-spy."""
    # Beside this Python first: PATH need not lead to the virtual environment.
    program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which(
        "py-spy"
    )
    if program is None:
        return ""
    command = [program, "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"py-spy failed: {error}"
    if done.returncode:
        return f"py-spy failed: {(done.stderr.strip() or 'it said nothing').splitlines()[0]}"
    return _shortened(done.stdout)


def _shortened(dump: str) -> str:
    """Leave out the header, the threads of hccl, and what is beyond the limit."""
    threads = dump.replace("\nThread ", _MARK + "Thread ").split(_MARK)[1:]
    lines = [
        line
        for thread in threads
        if '"hccl-' not in thread.partition("\n")[0]
        for line in thread.strip().splitlines()
    ]
    left_out = len(lines) - _MAX_LINES
    more = [f"... {left_out} more lines"] if left_out > 0 else []
    return "\n".join([*lines[:_MAX_LINES], *more])
