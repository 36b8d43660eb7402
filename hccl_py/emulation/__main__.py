"""`python -m hccl_py.emulation FILE LISTENER RANKS_PER_NODE`: the process that plays the network.

hccl-launch starts it with a listening socket of the number LISTENER, and closes its standard input
when the job has ended. Then it prints the report.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from pathlib import Path

from hccl_py.emulation.cluster import read
from hccl_py.emulation.server import Server


def main() -> int:
    """Serve a job; return the exit code."""
    # The launcher decides when the network ends: ranks say goodbye over it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # both ends of every connection
    path, descriptor, ranks_per_node = sys.argv[1:]
    cluster = read(Path(path))
    server = Server(cluster, socket.socket(fileno=int(descriptor)))
    server.run(sys.stdin.fileno())
    steps = server.record.steps()
    # The simulator takes a second to import, and a job without calls needs none of it.
    from hccl_py.emulation.report import lines

    for line in lines(cluster, int(ranks_per_node), steps):
        print(line, flush=True)
    for fault in server.faults.waiting:
        print(f"  not reached: {fault}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
