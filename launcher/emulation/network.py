"""The process that plays the network: started before the ranks, asked for its report after them."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hccl_py.launcher.emulation.options import EmulatedCluster
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.own_lines import say

_REPORT_S = 120.0  # the simulations in it end after 30 s


@contextmanager
def emulated_network(cluster: EmulatedCluster, name: str, loop: JobLoop) -> Iterator[None]:
    """Run the network of a job, which its ranks find by its name, and print its report."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{name}")
        listener.listen(1 << 10)
        words = (str(cluster.path.resolve()), str(listener.fileno()), str(cluster.ranks_per_node))
        process = subprocess.Popen(
            [sys.executable, "-m", "hccl_py.emulation", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            cwd="/",  # a checkout in the working directory would hide the installed package
            text=True,
        )
    loop.spared.add(process.pid)
    with process:
        try:
            yield
            _print_report(process)
        finally:
            process.kill()


def _print_report(process: subprocess.Popen[str]) -> None:
    try:
        report, _ = process.communicate(timeout=_REPORT_S)
    except subprocess.TimeoutExpired:
        say(f"the emulated network gave no report in {_REPORT_S:.0f} s")
        return
    for line in report.splitlines():
        say(line)
    if process.returncode:
        say(f"the process that emulated the network failed with exit code {process.returncode}")
