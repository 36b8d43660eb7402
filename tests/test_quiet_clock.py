"""The clock by which promises of time are tested counts what it should."""

import os
import threading
import time
from pathlib import Path

import pytest
from quiet_clock import SLOWEST, Moment
from ranks import run_ranks

BEGAN = Moment(s=9.0, taken_s=10.0, stolen_s=1.0, waited_s={1: 5.0, 2: 3.0})


@pytest.mark.parametrize(
    ("stolen_s", "waited_s", "expected_s"),
    [
        (1.0, {1: 5.0, 2: 3.0}, 10.0),
        (2.0, {1: 6.0, 2: 3.5}, 7.5),
        (1.0, {1: 5.0, 3: 2.0}, 8.0),  # thread 2 has ended, thread 3 is new
        (1.0, {1: 50.0, 2: 30.0}, 10.0 / SLOWEST),
    ],
)
def test_difference_leaves_out_waits_for_a_core_up_to_a_cap(
    stolen_s: float, waited_s: dict[int, float], expected_s: float
) -> None:
    ended = Moment(20.0, 20.5, stolen_s, waited_s)
    assert ended - BEGAN == pytest.approx(expected_s)


def test_moment_is_read_as_it_was_written(tmp_path: Path) -> None:
    BEGAN.write(tmp_path / "moment")
    assert Moment.read(tmp_path / "moment") == BEGAN


def see_threads(rank: int, world_size: int) -> tuple[int, set[int]]:
    return threading.get_native_id(), set(Moment.now().waited_s)


def test_ranks_and_their_test_see_one_another_s_threads() -> None:
    here = threading.get_native_id()
    for own, seen in run_ranks(see_threads, 2):
        assert {own, here} <= seen


def test_threads_of_one_core_wait_for_one_another() -> None:
    """Two threads compute on one core: about half of the time each waits."""
    cores = os.sched_getaffinity(0)
    began = Moment.now()

    def compute() -> None:
        os.sched_setaffinity(0, {min(cores)})  # of this thread alone
        ends_s = time.monotonic() + 1.0
        while time.monotonic() < ends_s:
            sum(range(1000))

    child = os.fork()
    if child == 0:
        compute()
        os._exit(0)
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    ended = Moment.now()
    os.waitpid(child, 0)
    assert ended - began < 0.8 * (ended.s - began.s)
