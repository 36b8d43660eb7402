"""hccl-perftest: what it prints, and that its two ends find and trust each other."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from quiet_clock import HANG_S

from hccl_py.bench._perftest import socket_ping_pong, socket_stream
from hccl_py.bench.verbs.main import main
from hccl_py.schedulers.ports import free_port

TIMEOUT_S = HANG_S
SECRET = secrets.token_hex(8)
SMALL = ("-n", "50", "--rounds", "2", "-t", "8")


def start(*arguments: str, secret: str = SECRET) -> subprocess.Popen[str]:
    environment = {**os.environ, "HCCL_SECRET": secret, "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "hccl_py.bench.verbs.main", *arguments]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def rows(output: str) -> list[list[str]]:
    """Return the fields of each line that begins with a number of bytes."""
    return [line.split() for line in output.splitlines() if re.match(r" \d", line)]


MORE = pytest.mark.nightly("bench")


@pytest.mark.parametrize(
    ("op", "device"),
    [
        ("write", "shm"),
        *(pytest.param("send", device, marks=MORE) for device in ("shm", "tcp")),
        pytest.param("write", "tcp", marks=MORE),
        pytest.param("send", "verbs_over_tcp", marks=MORE),
        *(pytest.param("read", device, marks=MORE) for device in ("shm", "tcp")),
    ],
)
def test_bandwidth_has_the_columns_of_ib_write_bw(op: str, device: str) -> None:
    ends = start("--local", "-d", device, "--op", op, "-s", "4099", "--compare", *SMALL)
    out, err = ends.communicate(timeout=TIMEOUT_S)
    assert ends.returncode == 0, err
    assert "#bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]" in out
    [(num_bytes, iterations, peak, average, rate, peer, ratio, _)] = rows(out)
    assert (num_bytes, iterations) == ("4099", "50")
    assert float(peak) >= float(average) > 0
    # Both are rounded: MB/s to 0.01, millions of messages to six places.
    assert float(rate) == pytest.approx(float(average) * 2**20 / 4099 / 1e6, abs=3e-6)
    # On a machine that is slow enough, so is this rounding.
    ours, theirs, rounding = float(average), float(peer), 0.006
    least, most = (ours - rounding) / (theirs + rounding), (ours + rounding) / (theirs - rounding)
    assert least - 0.001 <= float(ratio) <= most + 0.001


@MORE
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_latency_has_the_columns_of_ib_send_lat(op: str) -> None:
    ends = start("--local", "-d", "shm", "--op", op, "--latency", *SMALL)
    out, err = ends.communicate(timeout=TIMEOUT_S)
    assert ends.returncode == 0, err
    assert "t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]" in out
    [(num_bytes, _, least, most, typical, *_)] = rows(out)
    assert num_bytes == "8"
    assert 0 < float(least) <= float(typical) <= float(most)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("-s", "-1"), "0 to 2147483648, got '-1'"),
        (("-s", str(2**32)), "0 to 2147483648"),
        (("-n", "0"), "from 1 to"),
        (("-t", "0"), "1 to 16384, got '0'"),
        (("--rounds", "none"), "from 1 to"),
        (("--op", "write", "--latency", "-s", "0"), "-s 1 or more"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(
    arguments: tuple[str, ...], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["--local", *arguments])
    assert refused.value.code == 2
    assert expected in capsys.readouterr().err


def server_and_client(*arguments: str, secret: str = SECRET) -> tuple[str, str, int, int]:
    """Return what the client printed, and the exit codes of client and server."""
    port = str(free_port())
    server = start("-p", port)
    try:
        client = start("127.0.0.1", "-p", port, *arguments, secret=secret)
        out, err = client.communicate(timeout=TIMEOUT_S)
        return out, err, client.returncode, server.wait(TIMEOUT_S)
    finally:
        server.kill()
        server.communicate()


@MORE
def test_all_sizes_run_between_server_and_client() -> None:
    out, err, *codes = server_and_client("-a", "-n", "16", "--rounds", "1", "-t", "4")
    assert codes == [0, 0], err
    assert [row[0] for row in rows(out)] == [str(2**power) for power in range(1, 24)]


def test_client_with_another_secret_is_turned_away() -> None:
    _, err, *codes = server_and_client(secret="another")
    assert codes == [1, 1]
    assert "HCCL_SECRET" in err


def test_with_an_empty_secret_nothing_listens() -> None:
    server = start(secret="")
    _, err = server.communicate(timeout=TIMEOUT_S)
    assert server.returncode == 1
    assert "HCCL_SECRET" in err


@pytest.mark.parametrize("arguments", [["-d", "\udcff"], ["\udcff"], ["-d", ""]])
def test_name_that_cannot_be_shown_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "expected a name, got" in capsys.readouterr().err


SANDBOX = """
import errno, os, sys
from forbidden_calls import forbid
forbid(os.environ["FORBIDDEN"], errno.EPERM)
from hccl_py.bench._perftest import socket_ping_pong, socket_stream
from hccl_py.bench.verbs.main import main
if __name__ == "__main__":
    sys.exit(main(["--local", "-n", "10", "-s", "8"]))
"""


@pytest.mark.parametrize(
    ("call", "code"), [("sched_setaffinity", 0), ("sched_getaffinity", 0), ("eventfd2", 1)]
)
def test_forbidden_call_is_done_without_or_named(tmp_path: Path, call: str, code: int) -> None:
    path = tmp_path / "program.py"
    path.write_text(SANDBOX)
    variables = {"FORBIDDEN": call, "PYTHONPATH": os.pathsep.join(sys.path)}
    command, env = [sys.executable, str(path)], {**os.environ, **variables}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr.count("\n")) == (code, code), done.stderr
    assert call in done.stderr or not code


def test_loops_over_a_socket_end_with_the_exception_of_a_signal_handler() -> None:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    data = np.zeros(2 << 20, np.uint8)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for loop in (socket_ping_pong, socket_stream):
            for starts in (True, False):
                ours, silent = socket.socketpair()
                with ours, silent, pytest.raises(KeyboardInterrupt):
                    signal.setitimer(signal.ITIMER_REAL, 0.05)
                    loop(ours.fileno(), data.ctypes.data, 1 << 20, 10, starts)
    finally:
        signal.signal(signal.SIGALRM, before)
