"""The process that plays the network: started before the ranks, asked for its report after them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hccl_py.lab.emulation.launch.watch import Watch
from hccl_py.launcher.exit_codes import AGENT_KILLED
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.serve import JobServer
from hccl_py.launcher.own_lines import say

_REPORT_S = 120.0  # no simulation in it begins after 30 s
_END_S = 5.0


@contextmanager
def emulated_network(
    path: Path, ranks_per_node: int, name: str, loop: JobLoop, server: JobServer
) -> Iterator[None]:
    """Run the network of a job, which its ranks find by its name, and print its report.

    The job ends if the network's process does.
    """
    read_end, write_end = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, open(write_end, "wb"):
        listener.bind(f"\0{name}")
        listener.listen(1 << 10)
        handed = (listener.fileno(), write_end)
        words = (str(path), *map(str, handed), str(ranks_per_node))
        process = subprocess.Popen(
            [sys.executable, "-m", "hccl_py.lab.emulation", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=handed,
            cwd="/",  # a checkout in the working directory would hide the installed package
            env={key: value for key, value in os.environ.items() if not _is_secret(key)},
            text=True,
        )
    loop.spared.add(process.pid)
    with process, open(read_end, "rb"):
        _end_job_with(process, loop, server)
        watch = _watch(read_end, process, loop, server)
        try:
            yield
            if process.returncode is None:  # the loop saw no end of it
                _print_report(process)
        finally:
            loop.remove(watch)
            process.kill()


def _is_secret(name: str) -> bool:
    return name.startswith("HCCL_SECRET")


def _end_job_with(process: subprocess.Popen[str], loop: JobLoop, server: JobServer) -> None:
    """Have the loop end the job, without a restart, if the process ends before the job has."""
    assert process.stdout is not None
    output = process.stdout.fileno()

    def end() -> None:
        # It prints nothing before the job's end: the output is readable because it was closed.
        loop.selector.unregister(output)
        process.kill()
        code = process.wait(_END_S)
        _end_job(server, f"the process that emulates the network died (exit code {code})")

    loop.watch(output, end)


def _watch(pipe: int, process: subprocess.Popen[str], loop: JobLoop, server: JobServer) -> Watch:
    """Have the loop end the job, without a restart, if the process stands still."""

    def end(silence: str) -> None:
        assert process.stdout is not None
        if process.returncode is None:
            loop.selector.unregister(process.stdout)
            process.kill()
            process.wait(_END_S)
            _end_job(server, silence)

    watch = Watch(pipe, end)
    loop.why_killed = watch.why_killed
    loop.add(watch)
    return watch


def _end_job(server: JobServer, why: str) -> None:
    server.streams.say(f"hccl-launch: {why}: the job ends")
    server.coordinator.stop(f"error: {why}", AGENT_KILLED, time.monotonic())


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
