"""Runs on each of two virtual machines: programs of which one end listens and the other end dials.

    NUMBER=1 python guest_programs.py

Machine 1 starts the end that listens, and says when it does. The device's counters are printed
after each program: what it sent and received, and that nothing was lost.
"""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from guest_ranks import COUNTED, check_losses, counters
from guest_store import FileStore

HERE = Path(__file__).parent
SHARED = Path(os.environ["SHARED"])
LISTENS = os.environ["NUMBER"] == "1"
HOST = "10.99.0.1"
PATIENCE_S = 120.0
PORT = 18515
"""Of ib_write_bw, of ibv_rc_pingpong and of hccl-perftest."""

_EXAMPLE = f"{sys.executable} {HERE.parents[1] / 'examples' / '03_ping_pong.py'} --device verbs"
_OURS = f"{sys.executable} -m hccl_py.bench.verbs.main"
_BANDWIDTH, _LATENCY = "-s 65536 -n 200", "-s 64 -n 200"
_THEIR_BANDWIDTH = f"ib_write_bw -d rxe0 -x 1 {_BANDWIDTH}"
_THEIR_LATENCY = f"ib_send_lat -d rxe0 -x 1 {_LATENCY}"
_OUR_CLIENT = f"{_OURS} {HOST} -d verbs --rounds 1"

PROGRAMS = {
    "03_ping_pong": (7000, f"{_EXAMPLE} --listen 7000", f"{_EXAMPLE} --connect {HOST}:7000"),
    "ibv_rc_pingpong with our queue pair": (
        PORT,
        "ibv_rc_pingpong -d rxe0 -g 1 -n 100 -s 5000",
        f"{sys.executable} {HERE / 'guest_pingpong.py'} {HOST} 100 5000",
    ),
    "hccl-perftest --op write": (PORT, _OURS, f"{_OUR_CLIENT} {_BANDWIDTH}"),
    "ib_write_bw": (PORT, _THEIR_BANDWIDTH, f"{_THEIR_BANDWIDTH} {HOST}"),
    "hccl-perftest --op send": (PORT, _OURS, f"{_OUR_CLIENT} --op send --latency {_LATENCY}"),
    "ib_send_lat": (PORT, _THEIR_LATENCY, f"{_THEIR_LATENCY} {HOST}"),
}
"""By name: the port, the command of the end that listens, and that of the end that dials."""


def is_listening(port: int) -> bool:
    """Return whether a program of this machine listens there."""
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    state_of_listeners = "0A"
    rows = [line.split() for line in tables.splitlines()]
    return any(
        row[3] == state_of_listeners and row[1].endswith(f":{port:04X}")
        for row in rows
        if len(row) > 3
    )


def run(name: str, store: FileStore) -> None:
    """Run this machine's end of a program to its end."""
    port, listening, dialling = PROGRAMS[name]
    before = counters()
    if LISTENS:
        process = subprocess.Popen(shlex.split(listening))
        until_s = time.monotonic() + PATIENCE_S
        while not is_listening(port):
            assert process.poll() is None and time.monotonic() < until_s, name
            time.sleep(0.1)
        store.set(name, b"listens")
    else:
        store.get(name)
        process = subprocess.Popen(shlex.split(dialling))
    assert process.wait(PATIENCE_S) == 0, name
    after = counters()
    grew = {one: after[one] - before[one] for one in COUNTED}
    print(f"{name}: {grew}", flush=True)
    if not dialling.startswith("ib_"):  # they send again what an emulated processor is late with
        check_losses(before, after)


def main() -> None:
    """Run all of them."""
    os.environ.update(HCCL_SECRET="of two virtual machines", HCCL_SOCKET_IFNAME="eth0")
    store = FileStore(SHARED.parent)
    for name in PROGRAMS:
        print(f"== {name}", flush=True)
        run(name, store)


if __name__ == "__main__":
    main()
