"""The two hosts themselves: apart, joined by links that can be cut, and fit for ranks."""

import os
import subprocess

import torch
import torch.distributed as dist
from namespaces import TWO_HOSTS, Hosts
from ranks import run_ranks

pytestmark = TWO_HOSTS


def ping(hosts: Hosts, link: int) -> bool:
    """Connect from one host to a closed port of the other: refused if the link carries anything."""
    code = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 9), 0.3)\n"
        "except ConnectionRefusedError: print('refused')\n"
        "except OSError: pass"
    )
    words = hosts.command(0, "python3", "-c", code, hosts.address(1, link))
    return subprocess.run(words, capture_output=True, text=True, timeout=30).stdout == "refused\n"


def test_hosts_links_can_be_cut_and_mended_one_by_one() -> None:
    for ipv6 in (False, True):
        with Hosts(num_links=2, ipv6=ipv6) as hosts:
            assert (ping(hosts, 0), ping(hosts, 1)) == (True, True)
            hosts.cut(1)
            assert (ping(hosts, 0), ping(hosts, 1)) == (True, False)
            hosts.mend(1)
            assert ping(hosts, 1)
    assert not any(os.path.exists(f"/run/netns/{name}") for name in hosts.names)


def where_am_i(rank: int, world_size: int) -> tuple[int, float]:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return os.stat("/proc/self/ns/net").st_ino, tensor.sum().item()


def test_run_ranks_on_two_hosts_talk_over_the_link() -> None:
    with Hosts() as hosts:
        results = run_ranks(where_am_i, 4, hosts=hosts, backend="hccl")
    places = [place for place, _ in results]
    assert places[0] == places[1] != places[2] == places[3]
    assert os.stat("/proc/self/ns/net").st_ino not in places
    assert [total for _, total in results] == [12.0] * 4
