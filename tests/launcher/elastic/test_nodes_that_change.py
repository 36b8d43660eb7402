"""Elastic jobs whose nodes come and go: the digits example goes on without one of them."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, job
from namespaces import Hosts

from hccl_py.launcher.exit_codes import LOST_NODE, MISSING_NODE
from hccl_py.schedulers.ports import free_port

EXAMPLE = Path(__file__).parents[3] / "examples" / "01_train_digits.py"
ELASTIC = (*COMMAND, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1")
LIMIT_S = 60.0


def read_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read what a job prints up to a line; all output is one stream here, and ends with the job."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError("".join(lines))


def start(stack: ExitStack, *command: object) -> subprocess.Popen[str]:
    """Start a node whose output and errors are one stream."""
    return stack.enter_context(job("sh", "-c", 'exec "$@" 2>&1', "sh", *command))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("192.0.2.1", marks=pytest.mark.nightly("hosts"))]
)
def test_nodes_that_do_not_come_are_one_line(tmp_path: Path, host: str) -> None:
    endpoint = f"{host}:{free_port('127.0.0.1')}"
    with ExitStack() as stack:
        node = start(
            *(stack, *ELASTIC, "--rdzv-endpoint", endpoint, "--connect-timeout", 1),
            *("--no-python", "true"),
        )
        said, _ = node.communicate(timeout=LIMIT_S)
    assert node.returncode == MISSING_NODE
    assert said.count("\n") == 1
    assert "(--connect-timeout)" in said
    assert endpoint in said


@pytest.mark.nightly("hosts")
@pytest.mark.timeout(300)
def test_digits_go_on_when_a_node_joins_and_another_is_killed(tmp_path: Path) -> None:
    with Hosts(num_hosts=3) as hosts, ExitStack() as stack:
        endpoint = f"{hosts.address(0)}:29400"
        options = (
            *ELASTIC,
            "--rdzv-endpoint",
            endpoint,
            "--max-restarts",
            3,
            "--rdzv-id",
            "digits",
        )

        def node(host: int) -> subprocess.Popen[str]:
            # 120 is a multiple of 2 and 3: the steps of an epoch do not change with the nodes.
            checkpoint = tmp_path / str(host) / "digits.pt"
            script = (EXAMPLE, "--epochs", 200, "--batch-size", 120, "--checkpoint", checkpoint)
            return start(stack, *hosts.command(host, *map(str, (*options, *script))))

        first, second = node(0), node(1)
        read_until(first, "epoch +2/200")
        third = node(2)
        read_until(first, "will restart")
        read_until(first, "resumed")
        read_until(first, "epoch")
        second.kill()
        second.wait()
        read_until(first, "will restart")
        read_until(first, "resumed")
        last = read_until(first, "2 ranks on 2 nodes reached")[-1]
        assert first.wait(LIMIT_S) == third.wait(LIMIT_S) == 0
    accuracy = re.search(r"reached ([0-9.]+)%", last)
    assert accuracy is not None
    assert float(accuracy[1]) > 97


@pytest.mark.nightly("hosts")
def test_all_end_with_the_node_of_the_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import time\nprint('ready')\ntime.sleep(100)\n")
    with Hosts() as hosts, ExitStack() as stack:
        options = (*ELASTIC, "--rdzv-endpoint", f"{hosts.address(0)}:29400", path)
        first, second = (
            start(stack, *hosts.command(host, *map(str, options))) for host in range(2)
        )
        read_until(second, "ready")
        first.send_signal(signal.SIGKILL)
        before_s = time.monotonic()
        said = read_until(second, "hccl-launch: error")
        assert second.wait(LIMIT_S) == LOST_NODE
        assert time.monotonic() - before_s < 5.0
    assert said == [
        f"hccl-launch: error: lost {hosts.address(0)}:29400: the node of --rdzv-endpoint ended or "
        "cannot be reached, and an elastic job ends with it\n"
    ]
