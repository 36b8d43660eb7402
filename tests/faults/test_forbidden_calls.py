"""A sandbox forbids one system call: the job works another way, or one line names the call."""

import errno
import sys
from pathlib import Path

import forbidden_calls
import numpy as np
import pytest
from forbidden_calls import NUMBERS, forbid, is_possible
from launching import COMMAND, run
from ranks import run_ranks
from tiers import by_night

from hccl_py import Communicator
from hccl_py.transport.errors import HcclError

pytestmark = pytest.mark.skipif(not is_possible(), reason="numbers of another machine")

WORKS = "works"
TIMEOUT_S = 30.0
DISPENSABLE = (
    *("clock_nanosleep", "fallocate", "ftruncate", "getrandom", "io_uring_setup", "kcmp"),
    *("madvise", "mbind", "membarrier", "memfd_create", "mlock", "pidfd_getfd", "pidfd_open"),
    *("process_vm_readv", "process_vm_writev", "sched_getaffinity", "sched_setaffinity"),
    *("sched_setattr", "sched_yield", "signalfd4", "timerfd_create", "userfaultfd"),
)
"""Calls that there is another way for, or that only some features use."""
SAMPLE = ("bind", "memfd_create", "sched_getaffinity", "process_vm_readv", "eventfd2")
CASES = [
    pytest.param(name, error, marks=() if name in SAMPLE and error == "EPERM" else MORE)
    for MORE in [pytest.mark.nightly("attacks")]
    for name in NUMBERS
    for error in ("EPERM", "ENOSYS")
]


def work(rank: int, world_size: int, name: str, error: str, victims: list[int]) -> str:
    """Connect and make some calls, small and large; return how it ended."""
    if rank in victims:
        forbid(name, getattr(errno, error))
    try:
        with Communicator(timeout_s=TIMEOUT_S) as comm:
            for count in (1, 300_001):
                data = np.ones(count, np.float32)
                comm.all_reduce(data)
                np.testing.assert_array_equal(data, world_size)
                blocks = np.zeros((world_size, count), np.float32)
                comm.all_to_all(blocks, np.full_like(blocks, rank))
                np.testing.assert_array_equal(blocks[:, 0], np.arange(world_size))
            comm.subset(range(world_size), "again").barrier()
    except HcclError as failure:
        return str(failure)
    return WORKS


def on_two_nodes(rank: int) -> dict[str, str]:
    return {"HCCL_NODE_ID": str(rank // 2)}


@pytest.mark.parametrize(("name", "error"), CASES)
def test_forbidden_call_on_all_ranks_is_named_or_not_needed(name: str, error: str) -> None:
    for ending in run_ranks(work, 3, name, error, [0, 1, 2], env=on_two_nodes):
        named = name in ending and "\n" not in ending and name not in DISPENSABLE
        assert ending == WORKS or named, ending


@pytest.mark.parametrize("name", ["memfd_create", "sched_getaffinity"])
def test_forbidden_call_of_one_rank_that_can_do_without_it(name: str) -> None:
    endings = run_ranks(work, 3, name, "EPERM", [1], env=on_two_nodes)
    assert endings == [WORKS] * 3


UNDER_A_FILTER = """
import errno, os, sys
sys.path.insert(0, sys.argv[1])
from forbidden_calls import forbid
forbid(sys.argv[2], errno.EPERM)
os.execv(sys.argv[3], sys.argv[3:])
"""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("eventfd2", ()), ("sched_setaffinity", ()), ("sched_setaffinity", ("--bind", "core"))),
        *by_night("attacks", ("pidfd_open", ()), ("prlimit64", ()), ("sched_getaffinity", ())),
    ],
)
def test_forbidden_call_of_the_launcher_is_named_or_not_needed(
    name: str, options: tuple[str, ...]
) -> None:
    here = Path(forbidden_calls.__file__).parent
    words = (sys.executable, "-c", UNDER_A_FILTER, here, name, *COMMAND, *options, "-m", "this")
    done = run(*words)
    if name in ("eventfd2", "pidfd_open") or options:
        assert done.returncode == 126
        assert name in done.stderr
        assert done.stderr.count("\n") == 1
    else:
        assert (done.returncode, done.stderr) == (0, "")
