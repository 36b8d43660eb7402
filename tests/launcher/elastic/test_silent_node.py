"""A node that is killed before its ranks have met the others: nobody's connection breaks."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, agent_of, job
from quiet_clock import HANG_S

from hccl_py.launcher.exit_codes import LOST_NODE
from hccl_py.schedulers.ports import free_port

# These ranks neither fail nor end, as those that wait in init_process_group for 30 minutes.
WAITS = """
import os, time
print(os.environ["WORLD_SIZE"], flush=True)
time.sleep(1000)
"""
SILENT_AFTER_6_S = "keep_alive_interval=2,keep_alive_max_attempt=3,last_call_timeout=1"


@pytest.mark.nightly("launchers")
@pytest.mark.parametrize("restarts", [0, 1])
def test_node_that_is_killed_before_its_ranks_met_is_noticed(tmp_path: Path, restarts: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(WAITS)
    endpoint = ("--rdzv-endpoint", f"127.0.0.1:{free_port('127.0.0.1')}")
    conf = ("--rdzv-conf", SILENT_AFTER_6_S, "--max-restarts", restarts)
    with ExitStack() as stack:

        def node() -> subprocess.Popen[str]:
            return stack.enter_context(job(*COMMAND, "--nnodes", "1:2", *endpoint, *conf, script))

        first = node()
        assert first.stdout is not None
        assert first.stdout.readline() == "1\n"  # it serves the store, so it has to be the first
        second = node()
        assert first.stdout.readline() == "2\n"
        os.kill(agent_of(second), signal.SIGKILL)
        second.kill()
        if restarts:
            assert first.stdout.readline() == "1\n"
            first.terminate()
        _, said = first.communicate(timeout=HANG_S)
    assert "127.0.0.1 was lost: no sign of it for 6 s" in said
    assert ("restart 1 of 1" in said) == bool(restarts)
    assert first.returncode == (128 + signal.SIGTERM if restarts else LOST_NODE)
