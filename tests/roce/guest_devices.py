"""Runs on each of two virtual machines, one rank on each: two devices on two networks.

    NUMBER=1 python guest_devices.py

The lanes of the two ranks take turns on the devices. When one link is down, a new communicator can
use the other device.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
from guest_faults import HAS_TROUBLE, both_say, check_sum, communicator

DEVICES = ("rxe0", "rxe1")


def packets_sent(device: str) -> int:
    """Read how many packets the device has sent."""
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())


def both_carry_the_lanes() -> None:
    """Both devices carry calls, whose results are right."""
    with communicator("two_devices") as comm:
        before = {device: packets_sent(device) for device in DEVICES}
        for _ in range(5):
            check_sum(comm)
        gathered = np.zeros((2, 100_000))
        comm.all_gather(gathered, np.full(100_000, comm.rank + 1.0))
        assert (gathered == [[1], [2]]).all()
        grew = {device: packets_sent(device) - before[device] for device in DEVICES}
        print(f"packets sent: {grew}", flush=True)
        assert all(grew.values()), grew


def the_other_one_goes_on() -> None:
    """A new communicator uses what is left."""
    with communicator("one_device") as comm:
        check_sum(comm)
        assert comm.statistics()["devices"]["verbs"]["messages"] > 0


def main() -> None:
    """Use both, then one."""
    os.environ.update(
        HCCL_TRANSPORT="verbs",
        HCCL_SECRET="of two virtual machines",
        HCCL_SOCKET_IFNAME="eth0",
        HCCL_IB_HCA="rxe0,rxe1",
        HCCL_IB_TIMEOUT="14",
    )
    both_carry_the_lanes()
    if HAS_TROUBLE:
        subprocess.run(["ip", "link", "set", "eth1", "down"], check=True)
    both_say("down")
    os.environ["HCCL_IB_HCA"] = "rxe0"
    the_other_one_goes_on()


if __name__ == "__main__":
    main()
