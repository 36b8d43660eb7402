"""hccl-launch for one `spawn`: it ends with the process that called, and writes the failure."""

import signal
import sys
from pathlib import Path

from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.machine.processes import end_with_parent
from hccl_py.launcher.main import command

_STOP_S = 5


def main() -> None:
    """Run `FOLDER NPROC PARENT`: the ranks of the call in a folder, for a process."""
    name, nproc, parent = sys.argv[1:]
    end_with_parent(signal.SIGTERM, int(parent))
    JobServer.failure_file = Path(name) / "failure"
    words = ("--standalone", "--nproc", nproc, "--shutdown-timeout", str(_STOP_S))
    sys.argv = ["hccl-launch", *words, "-m", "hccl_py.launcher.spawn.rank", name]
    command()


if __name__ == "__main__":
    main()
