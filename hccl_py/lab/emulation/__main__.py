"""`python -m hccl_py.lab.emulation FILE LISTENER PIPE RANKS_PER_NODE`: the process of the network.

hccl-launch starts it with a listening socket and a pipe of these numbers, and closes its standard
input when the job has ended. Then it prints the report. Into the pipe goes a line every second, and
one before every kill: `launch_network.py` reads them.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from pathlib import Path

from hccl_py.lab.emulation.cluster import read
from hccl_py.lab.emulation.server import Server


def main() -> int:
    """Serve a job; return the exit code."""
    # The launcher decides when the network ends: ranks say goodbye over it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # both ends of every connection
    path, listener, launcher, ranks_per_node = sys.argv[1:]
    cluster = read(Path(path))
    server = Server(cluster, socket.socket(fileno=int(listener)), int(launcher))
    server.run(sys.stdin.fileno())
    # The simulator takes a second to import, and a job without calls needs none of it.
    from hccl_py.lab.emulation.report import lines
    from hccl_py.lab.emulation.steps import steps_of

    for line in lines(cluster, int(ranks_per_node), steps_of(server.record)):
        print(line, flush=True)
    for fault in server.faults:
        print(f"  not reached: {fault}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
