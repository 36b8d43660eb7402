"""What the command makes of two hosts. The hosts themselves: tests/harness/test_namespaces.py."""

import os
import subprocess
import sys

import pytest
from namespaces import TWO_HOSTS

from hccl_py.bench.collective.main import main

_SHORT = ["--iters", "2", "--warmup", "0", "--timeout", "60", "--sizes", "4,4099,1M"]


def _left(pid: int | None = None) -> list[str]:
    """The namespaces that a process (None: this one) made and did not remove."""
    listing = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    mine = f"hccl-{pid or os.getpid()}-"
    return [line for line in listing.stdout.splitlines() if line.startswith(mine)]


@TWO_HOSTS
@pytest.mark.parametrize("api", [["--compare", "gloo"], ["--api", "communicator"]])
def test_main_with_veth_finds_nothing_wrong_and_leaves_nothing(
    api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SHORT, "--nproc", "1", "--nnodes", "2", "--veth", "2", *api]) == 0
    assert "2 network namespaces joined by 2 veth links" in capsys.readouterr().out
    assert _left() == []


def test_main_with_veth_without_root_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([*_SHORT, "--nnodes", "2", "--veth", "1"]) == 1
    message = capsys.readouterr().err
    assert message == "hccl-bench: network namespaces need root: run this with sudo\n"


@TWO_HOSTS
def test_main_with_veth_that_is_terminated_leaves_no_namespace() -> None:
    words = [sys.executable, "-m", "hccl_py.bench.collective.main", "--nnodes", "2", "--veth", "1"]
    command = subprocess.Popen(
        [*words, "--sizes", "4", "--iters", "100000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert command.stdout is not None
    while "algbw" not in command.stdout.readline():  # the ranks have joined
        assert command.poll() is None
    command.terminate()
    command.communicate(timeout=30)
    assert command.returncode == 130
    assert _left(command.pid) == []
