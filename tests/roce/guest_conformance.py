"""Runs on each of two virtual machines: the conformance suite of queue pairs, with one end on each.

    NUMBER=1 python guest_conformance.py

Machine 1 runs the tests, and machine 2 does with its end what they say. Meanwhile it runs the one
that needs both ends in one process.
"""

import os
import subprocess
import sys
from pathlib import Path

SUITE = Path(__file__).parents[1] / "transport" / "verbs"
sys.path[:0] = [str(SUITE), str(SUITE.parents[1] / "harness")]

from remote_end import serve  # noqa: E402

PORT = 7100
SERVER = "10.99.0.2"


def main() -> int:
    """Serve, or run the suite; return the exit code."""
    os.environ.update(HCCL_SECRET="of two virtual machines", HCCL_SOCKET_IFNAME="eth0")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5"]
    if os.environ["NUMBER"] == "2":
        alone = subprocess.Popen(
            [
                *command,
                SUITE / "test_rdma_conformance.py",
                "-k",
                "program_ends_though_a_thread_waits",
            ]
        )
        serve(SERVER, PORT)
        return alone.wait()
    os.environ["HCCL_TEST_REMOTE_END"] = f"{SERVER}:{PORT}"
    return subprocess.call([*command, SUITE / "test_rdma_between_machines.py"])


if __name__ == "__main__":
    sys.exit(main())
