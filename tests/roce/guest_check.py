"""Runs on each of two virtual machines: `hccl-launch --check`, and what is wrong with machine 2.

    NUMBER=1 python guest_check.py

Each trouble is found, with the command that mends it. Where that is a command of this machine,
machine 2 runs it, and the next check finds the trouble no more.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from guest_store import FileStore

SHARED = Path(os.environ["SHARED"])
IS_HEAD = os.environ["NUMBER"] == "1"
PATIENCE_S = 200.0
PORT = 29400
CHECK_FAILED = 78
LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
RUNS = (
    f"{sys.executable} -m hccl_py.launcher.main --check --nproc 1 --nnodes 2 "
    f"--node_rank {int(not IS_HEAD)} --master_addr 10.99.0.1 --master_port"
)


def check(number: int, settings: Mapping[str, str]) -> tuple[int, str]:
    """Check, with these settings on machine 2; return the exit code and what machine 1 printed."""
    environ = {
        **os.environ,
        "HCCL_SECRET": "of two virtual machines",
        "HCCL_TRANSPORT": "verbs",
        **({} if IS_HEAD else settings),
    }
    # A port of its own: the one before may still be closing.
    command = shlex.split(f"{RUNS} {PORT + number}")
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    said = done.stdout + done.stderr
    print(f"-- {settings or 'all is well'}: {done.returncode}\n{said}", flush=True)
    return done.returncode, said


def expect(number: int, settings: Mapping[str, str], code: int, *texts: str) -> None:
    """Fail unless the check ends like this; only machine 1 prints what it found."""
    got, said = check(number, settings)
    assert got == code, got
    missing = [text for text in texts if IS_HEAD and text not in said]
    assert not missing, missing
    store = FileStore(SHARED.parent)
    store.set(f"checked-{number}-{IS_HEAD}", b"")
    store.get(f"checked-{number}-{not IS_HEAD}")


def run_on_second(command: str) -> None:
    """Run a command that mends, or breaks, machine 2."""
    if not IS_HEAD:
        subprocess.run(command, shell=True, check=True, timeout=PATIENCE_S)


def main() -> None:
    """Check again and again."""
    run_on_second("ip link set eth0 mtu 1500")
    small = "has an MTU of 1500 on eth0: RDMA packets are small"
    mend_mtu = "ip link set eth0 mtu 4200"
    used, mtu = "rxe0 port 1 (Ethernet", "ACTIVE, RoCE MTU 1024): used, with GID"
    gids = "GID 1: 10.99.0.2 (RoCE v2, eth0)"
    expect(0, {}, 0, small, mend_mtu, used, mtu, gids, "locked memory: unlimited", "flow control")
    run_on_second(mend_mtu)
    no_port = "has no RDMA port to use, which HCCL_TRANSPORT=verbs needs"
    expect(
        1,
        {"HCCL_IB_HCA": "^rxe0"},
        CHECK_FAILED,
        no_port,
        "HCCL_IB_HCA=^rxe0 leaves it out: unset it",
    )
    run_on_second(f"mv {LIBRARY} {LIBRARY}.moved")
    cannot = "cannot open rxe0 port 1: libibverbs.so.1: cannot open shared object file"
    expect(6, {}, CHECK_FAILED, cannot, "apt install ibverbs-providers")
    run_on_second(f"mv {LIBRARY}.moved {LIBRARY}")
    run_on_second("rdma link del rxe0")
    expect(4, {}, CHECK_FAILED, no_port, "rdma link add rxe0 type rxe netdev INTERFACE")
    run_on_second("rdma link add rxe0 type rxe netdev eth0")
    expect(5, {}, 0)


if __name__ == "__main__":
    main()
