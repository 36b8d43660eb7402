"""How an elastic job ends when a process of the launcher is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import COMMAND, job

from hccl_py.schedulers.ports import free_port


@pytest.mark.nightly("launchers")
def test_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    # A child in a session of its own, which no signal to the rank's group reaches.
    path.write_text(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = (*COMMAND, "--nnodes", "1:2", "--rdzv-endpoint", endpoint)
    with job(*command, "--rdzv-conf", "last_call_timeout=1", path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()  # the orphans are looked for on the way out
