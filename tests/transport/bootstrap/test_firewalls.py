"""Networks between two hosts that let only a part through: all ranks end early, with one cause."""

import logging
import re
import time
from pathlib import Path

import numpy as np
import pytest
from namespaces import NEEDS_NFT, TWO_HOSTS, Hosts, firewall
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator
from hccl_py.transport.errors import BootstrapError, PeerLostError

pytestmark = [TWO_HOSTS, NEEDS_NFT]

SYN = "tcp flags & (syn | ack) == syn"
SOON_S = 40.0
"""Long before any timeout: these are the defaults, of minutes."""
VERDICTS = {"dropped": "drop", "refused": "reject with tcp reset"}


def cause_at_the_start(rank: int, world_size: int) -> str:
    began_s = time.monotonic()
    with pytest.raises(BootstrapError) as raised:
        Communicator()
    assert time.monotonic() - began_s < SOON_S
    return str(raised.value)


@pytest.mark.parametrize("verdict", VERDICTS)
def test_data_ports_blocked_from_the_start_are_named_by_all_ranks(verdict: str) -> None:
    with Hosts() as hosts:
        # What the store's port is nobody knows yet; ranks bind theirs in a range of their own.
        firewall(hosts, 0, f"{SYN} tcp dport 61000-61999 {VERDICTS[verdict]}")
        env = {"HCCL_PORT_RANGE": "61000-61999"}
        causes = run_ranks(cause_at_the_start, 4, hosts=hosts, env=env, timeout_s=2 * SOON_S)
    why = {"dropped": "no answer in 12 s", "refused": "connection refused, although that rank"}
    pattern = (
        r"rank \d: cannot connect: (rank [23] on .* could not reach rank [01] on .* at "
        rf'10.77.0.1:61\d+ through link0 in step "control": connecting: {why[verdict]}.*)'
    )
    found = [re.fullmatch(pattern, cause) for cause in causes]
    assert all(found), causes
    assert len({one[1] for one in found if one}) == 1, causes


def cause_in_a_call(
    rank: int, world_size: int, hosts: Hosts, rule: str, folder: Path
) -> tuple[str, list[str]]:
    lines: list[str] = []
    logger = logging.getLogger("hccl_py.transport")
    logger.addFilter(lambda record: lines.append(record.getMessage()) is None)
    comm = Communicator()
    (folder / f"connected-{rank}").touch()
    wait_until(lambda: len(list(folder.glob("connected-*"))) == 2, "both are connected")
    firewall(hosts, rank, rule)
    (folder / f"blocked-{rank}").touch()
    wait_until(lambda: len(list(folder.glob("blocked-*"))) == 2, "both firewalls stand")
    began_s = time.monotonic()
    with pytest.raises(PeerLostError) as raised:
        comm.all_reduce(np.ones(1 << 18, np.float32))
    assert time.monotonic() - began_s < SOON_S
    return str(raised.value), lines


RULES = {
    "dropped": f"{SYN} drop",
    "refused": f"{SYN} reject with tcp reset",
    "large packets dropped": "ip length > 1300 drop",
}
WHY = {
    "dropped": "lane 0.* was tried for .*no answer in 3 s; a firewall",
    "refused": "lane 0.* was tried for .*connection refused; a firewall",
    "large packets dropped": "4 connections were made and broke in .*MTU 1500 here",
}


@pytest.mark.parametrize("rule", RULES)
def test_network_that_carries_only_the_control_connections_ends_the_call_on_all_ranks(
    rule: str, tmp_path: Path
) -> None:
    with Hosts() as hosts:
        given = hosts, RULES[rule], tmp_path
        results = run_ranks(cause_in_a_call, 2, *given, hosts=hosts, timeout_s=90)
    texts = [text for text, _ in results]
    assert texts[0] == texts[1]
    assert re.search(f"can no longer be reached: .*{WHY[rule]}", texts[0]), texts[0]
    for _, lines in results:
        assert len(lines) <= 3, lines
