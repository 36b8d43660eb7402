"""The third example: both ends in two processes, and over a connection as on two hosts."""

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from quiet_clock import HANG_S

from hccl_py.schedulers.ports import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "03_ping_pong.py"
SECRET = secrets.token_hex(8)
TIMEOUT_S = HANG_S


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "HCCL_SECRET": SECRET, "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


MORE = pytest.mark.nightly("bench")


@pytest.mark.parametrize(
    "provider", ["shm", *(pytest.param(name, marks=MORE) for name in ("tcp", "zmq"))]
)
def test_two_processes_play(provider: str) -> None:
    out, err = start("--device", provider).communicate(timeout=TIMEOUT_S)
    assert re.fullmatch(rf"{provider}: 1000 turns, [0-9.]+ us each way\n", out), err


def test_two_hosts_play() -> None:
    port = free_port()
    server = start("--listen", port)
    try:
        # The server may not listen yet.
        for _ in range(100):
            client = start("--connect", f"127.0.0.1:{port}")
            out, err = client.communicate(timeout=TIMEOUT_S)
            if "ConnectionRefusedError" not in err:
                break
        assert re.fullmatch(r"tcp: 1000 turns, [0-9.]+ us each way\n", out), err
        assert server.wait(TIMEOUT_S) == 0
    finally:
        server.kill()
        server.communicate()
