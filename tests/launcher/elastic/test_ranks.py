"""The ranks of an elastic job: their lines, stalls and failures are those of other jobs."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, LIMIT_S, job, launch
from thread_ranks import wait_until

from hccl_py.schedulers.ports import free_port

SCRIPT = """
import os, sys, time
def end_of(rank):
    raise ValueError(f"rank {rank} had enough")
if os.environ["RANK"] == "1":
    while not os.path.exists(__file__ + ".end"):
        pass  # it computes
    end_of(1)
print("hello"); print("over there", file=sys.stderr)
while not os.path.exists(__file__ + ".end"):
    time.sleep(0.1)
time.sleep(100)
"""


def report(text: str) -> str:
    """Return the report in what a job printed, less what differs between two jobs."""
    found = re.search(r"^hccl-launch: rank 1 of 2 failed(.*\n)+", text, re.MULTILINE)
    assert found is not None, text
    return re.sub(r"pid \d+|(?<=node 1) on [^,]*", "", found[0])


@pytest.mark.nightly("launchers")
def test_two_nodes_print_and_stall_and_fail_as_in_a_job_of_fixed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_STALL_WARNING_S", "1")
    path, logs, host = tmp_path / "script.py", tmp_path / "logs", socket.gethostname()
    path.write_text(SCRIPT)
    # Both are this machine: the second one finds that the port is taken, and connects.
    command = (
        *(*COMMAND, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1", "--prefix", "auto"),
        *("--rdzv-endpoint", f"127.0.0.1:{free_port('127.0.0.1')}", "--log-dir", logs, path),
    )
    printed = [tmp_path / "0", tmp_path / "1"]
    for screen in printed:
        screen.touch()

    def said() -> list[str]:
        return sorted((each.read_text() for each in printed), key=len)

    with ExitStack() as stack:
        nodes = [
            stack.enter_context(job("sh", "-c", 'exec "$@" > "$0" 2>&1', screen, *command))
            for screen in printed
        ]
        # A slow machine may name ranks before they have begun.
        seen = (f"[{host}:0] hello\n", f"[{host}:0] over there\n", f"\n  rank 0 (host {host}, pid ")
        wait_until(
            lambda: any(all(part in each for part in seen) for each in said()),
            "a stall is named where the rank runs",
            LIMIT_S,
        )
        Path(f"{path}.end").touch()
        for node in nodes:
            node.wait(LIMIT_S)
    assert [node.returncode for node in nodes] == [1, 1], said()
    for each in said():
        assert "hccl-launch: 2 ranks start on 127.0.0.1, 127.0.0.1\n" in each
        assert " ended, with exit code 0" not in each, "only ranks of this node are seen to end"
    assert sorted((logs / "attempt_0" / "rank_0.log").read_text().split("\n")) == sorted(
        ["hello", "over there", ""]
    )
    fixed = launch("--nnodes", 2, "--log-dir", logs, path)
    (there,) = [each for each in said() if "(that node has the report)" in each]
    (here,) = [each for each in said() if each != there]
    assert report(here) == report(fixed.stderr)
    assert there.splitlines()[-1].startswith("hccl-launch: rank 1 of 2 failed (node 1 on ")
