"""What hostile circumstances do to random calls, of which every byte is compared with numpy's.

Seeds are fixed: the name of a test that fails is all that it takes to run it again.
"""

import os
import signal
import threading
import time
from contextlib import ExitStack

import namespaces
import pytest
from injected_ranks import be_rank
from injections import DEADLY, Injection, Layout, play
from namespaces import NEEDS_NFT, Hosts, firewall
from random_calls import NativeCalls, RandomCalls
from ranks import run_ranks

from hccl_py import Communicator

pytestmark = pytest.mark.nightly("attacks")

LAYOUTS = [
    Layout(f"{size} on {nodes}", size, nodes)
    for size, nodes in ((2, 1), (3, 1), (3, 2), (4, 2), (5, 3))
]
KILLS = sorted(DEADLY - {"out_of_memory", "full_disk"})


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("kind", KILLS)
def test_random_kill_is_named_on_all_ranks(kind: str, layout: Layout, seed: int) -> None:
    play(be_rank, Injection(kind, layout, 1_000 + seed)).judge()


def call_from_many_threads(rank: int, world_size: int, seed: int) -> int:
    """Make calls of four communicators, each from a thread of its own, at once."""
    with ExitStack() as open_ones:
        world = open_ones.enter_context(Communicator(timeout_s=120))
        comms = [world.subset(range(world_size), f"of thread {i}") for i in range(3)]
        calls = [
            RandomCalls(NativeCalls(one), f"{seed}/{i}") for i, one in enumerate([world, *comms])
        ]
        for one in comms:
            open_ones.callback(one.close)
        failures: list[BaseException] = []

        def run(these: RandomCalls) -> None:
            try:
                for _ in range(40):
                    these.one()
                these.finish()
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=(each,)) for each in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return sum(each.num_checked for each in calls)


@pytest.mark.parametrize("seed", range(10))
def test_schedules_of_many_threads_and_communicators_give_right_results(seed: int) -> None:
    env = {"HCCL_NODE_ID": "0"} if seed % 2 else None
    counts = run_ranks(
        call_from_many_threads,
        4,
        seed,
        env=env or (lambda rank: {"HCCL_NODE_ID": str(rank // 2)}),
        timeout_s=300,
    )
    assert len(set(counts)) == 1


def call_among_forks_and_signals(rank: int, world_size: int, seed: int) -> tuple[int, int]:
    """Make calls while a timer's signals arrive, and fork between them."""
    num_signals = 0

    def count(*_: object) -> None:
        nonlocal num_signals
        num_signals += 1

    for number in (signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD):
        signal.signal(number, count)
    with Communicator(timeout_s=120) as comm:
        calls = RandomCalls(NativeCalls(comm), f"signals/{seed}")
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        for number in range(60):
            calls.one()
            if number % 7 == seed % 7:
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGUSR1)
                assert os.waitpid(child, 0)[1] == 0
        calls.finish()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return calls.num_checked, num_signals


@pytest.mark.parametrize("seed", range(8))
def test_forks_and_signals_change_no_result(seed: int) -> None:
    done = run_ranks(
        call_among_forks_and_signals,
        3,
        seed,
        env=lambda rank: {"HCCL_NODE_ID": str(rank // 2 if seed % 2 else 0)},
        timeout_s=200,
    )
    assert all(num_checked == 60 and num_signals > 8 for num_checked, num_signals in done)


def call_over_bad_network(rank: int, world_size: int, seed: int) -> int:
    with Communicator(timeout_s=200) as comm:
        calls = RandomCalls(NativeCalls(comm), f"loss/{seed}")
        for _ in range(25):
            calls.one()
        calls.finish()
    return calls.num_checked


@pytest.fixture
def hosts() -> Hosts:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    return Hosts()


@NEEDS_NFT
@pytest.mark.timeout(500)
@pytest.mark.parametrize("percent", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_lost_packets_change_no_result(hosts: Hosts, percent: int, seed: int) -> None:
    with hosts:
        for host in (0, 1):
            firewall(hosts, host, f"numgen random mod 100 < {percent} drop")
        counts = run_ranks(call_over_bad_network, 4, seed, hosts=hosts, timeout_s=400)
    assert set(counts) == {25}


@NEEDS_NFT
@pytest.mark.timeout(500)
@pytest.mark.parametrize("seed", range(3))
def test_cuts_of_the_network_change_no_result(hosts: Hosts, seed: int) -> None:
    """All packets are lost for a second, again and again."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(2.0 + seed):
            firewall(hosts, seed % 2, "drop")
            time.sleep(1.0)
            namespaces.call_inside(
                hosts.names[seed % 2], lambda: os.system("nft delete table inet test")
            )

    with hosts:
        outsider = threading.Thread(target=cut)
        outsider.start()
        try:
            counts = run_ranks(call_over_bad_network, 4, seed, hosts=hosts, timeout_s=400)
        finally:
            over.set()
            outsider.join()
    assert set(counts) == {25}
