"""Runs on each of two virtual machines, one rank on each: two devices on two networks.

    NUMBER=1 python guest_devices.py

The lanes of the two ranks take turns on the devices. When one link goes down, calls go on over the
other device, and all results are right.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from guest_faults import (
    HAS_TROUBLE,
    Lines,
    both_say,
    check_sum,
    communicator,
    run,
    wait_for_port,
)

import hccl_py
from hccl_py import Communicator

DEVICES = ("rxe0", "rxe1")
COUNT = 40_000
TRAFFIC_CLASS = 26 << 2  # DSCP 26
ETH_P_ALL, ETHERNET_BYTES, ROCE_PORT = 3, 14, 4791
NUM_ROUNDS = 60
BREAKS_AFTER = 20
"""Rounds of calls, and in which of them the link goes down."""


def packets_sent(device: str) -> int:
    """Read how many packets the device has sent."""
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())


def both_carry_the_lanes(name: str) -> None:
    """Both devices carry calls, whose results are right."""
    with communicator(name) as comm:
        before = {device: packets_sent(device) for device in DEVICES}
        for _ in range(5):
            check_sum(comm)
        gathered = np.zeros((2, 100_000))
        comm.all_gather(gathered, np.full(100_000, comm.rank + 1.0))
        assert (gathered == [[1], [2]]).all()
        grew = {device: packets_sent(device) - before[device] for device in DEVICES}
        print(f"packets sent: {grew}", flush=True)
        assert all(grew.values()), grew


def calls(comm: Communicator, round_: int, registered: tuple[np.ndarray, np.ndarray]) -> None:
    """Reduce, gather and send, ordinary memory and registered; compare all with what it must be."""
    me, peer = comm.rank, 1 - comm.rank
    data = np.full(COUNT, me + round_, "float64")
    comm.all_reduce(data)
    assert (data == 2 * round_ + 1).all(), round_
    gathered, mine = registered
    mine[:] = me + 3 * round_
    comm.all_gather(gathered, mine)
    assert (gathered == [[3 * round_], [3 * round_ + 1]]).all(), round_
    received = np.zeros(COUNT)
    work = comm.nonblocking.send(np.full(COUNT, me + 7.0 * round_), peer)
    comm.recv(received, peer)
    work.wait()
    assert (received == peer + 7.0 * round_).all(), round_


def calls_go_on_over_the_other_device() -> None:
    """One link goes down in the middle of calls; the log names its device and the status."""
    log = Lines()
    registered = hccl_py.empty((2, COUNT), "float64"), hccl_py.empty(COUNT, "float64")
    with communicator("goes_on") as comm:
        longest_s = 0.0
        for round_ in range(NUM_ROUNDS):
            if HAS_TROUBLE and round_ == BREAKS_AFTER:
                threading.Thread(target=run, args=["ip link set eth1 down"]).start()
            began_s = time.monotonic()
            calls(comm, round_, registered)
            longest_s = max(longest_s, time.monotonic() - began_s)
        line = log.wait_for("RDMA device rxe1")
        print(f"{line}; the longest round took {longest_s:.1f} s", flush=True)
        # The other rank may be told before its own request fails.
        reasons = ["status", "IBV_EVENT"] + ["the peer has left it"] * (not HAS_TROUBLE)
        assert "its messages take rxe0" in line and any(one in line for one in reasons)
        before = {device: packets_sent(device) for device in DEVICES}
        calls(comm, NUM_ROUNDS, registered)
        after = {device: packets_sent(device) for device in DEVICES}
        assert after["rxe0"] > before["rxe0"], (before, after)
        assert comm.statistics()["devices"]["tcp"]["messages"] == 0
        both_say("gone on")
        if HAS_TROUBLE:  # soft-RoCE destroys a queue pair when its packets have left
            run("ip link set eth1 up")
        both_say("up again")


def settings_reach_the_wire() -> None:
    """Packets go to the UDP port of RoCE v2, and carry HCCL_IB_TC."""
    os.environ["HCCL_IB_TC"] = str(TRAFFIC_CLASS)
    seen: set[tuple[int, int]] = set()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire:
        wire.setblocking(False)
        with communicator("traffic_class") as comm:
            for _ in range(20):
                check_sum(comm)
                seen |= set(roce_packets(wire))
    print(f"network and traffic class of RoCE packets: {sorted(seen)}", flush=True)
    assert seen == {(99, TRAFFIC_CLASS), (100, TRAFFIC_CLASS)}
    del os.environ["HCCL_IB_TC"]


def roce_packets(wire: socket.socket) -> Iterator[tuple[int, int]]:
    """Yield the network (10.NETWORK.0.0) and traffic class of each RoCE v2 packet that came by."""
    while True:
        try:
            packet = wire.recv(256, socket.MSG_TRUNC)
        except BlockingIOError:
            return
        header = packet[ETHERNET_BYTES:]
        is_udp = packet[12:14] == b"\x08\x00" and header[9] == socket.IPPROTO_UDP
        if is_udp and int.from_bytes(header[22:24], "big") == ROCE_PORT:
            yield header[17], header[1]


def main() -> None:
    """Use both, then one, then both."""
    os.environ.update(
        HCCL_TRANSPORT="verbs",
        HCCL_SECRET="of two virtual machines",
        HCCL_SOCKET_IFNAME="eth0",
        HCCL_IB_HCA="rxe0,rxe1",
        HCCL_IB_TIMEOUT="14",
    )
    both_carry_the_lanes("two_devices")
    calls_go_on_over_the_other_device()
    wait_for_port()
    both_say("ports")
    both_carry_the_lanes("two_devices_again")
    settings_reach_the_wire()


if __name__ == "__main__":
    main()
