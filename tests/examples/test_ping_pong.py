"""The third example: both ends in two processes, and over a connection as on two hosts."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from hccl_py.bench.verbs.link import listen

EXAMPLE = Path(__file__).parents[2] / "examples" / "03_ping_pong.py"
SECRET = secrets.token_hex(8)
TIMEOUT_S = 60


def start(*arguments: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "HCCL_SECRET": SECRET, "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, str(EXAMPLE), *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize("provider", ["shm", "tcp", "zmq"])
def test_two_processes_play(provider: str) -> None:
    out, err = start("--device", provider).communicate(timeout=TIMEOUT_S)
    assert re.fullmatch(rf"{provider}: 1000 turns, [0-9.]+ us each way\n", out), err


def test_two_hosts_play() -> None:
    with listen(0) as free:
        port = free.getsockname()[1]
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
