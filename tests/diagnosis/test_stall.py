"""A call without progress: one line on the coordinator's stderr, more at growing intervals."""

from __future__ import annotations

import io
import re
import sys
import time

import numpy as np
import pytest
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator, InvalidArgumentError
from hccl_py.diagnosis.stall import warning_from_environment

LATE = 2
LATE_S = 2.5
WARNING_S = 0.4


def waits_for_late_rank(rank: int, world_size: int) -> list[str]:
    """Return what this rank printed while a rank came late."""
    sys.stderr = printed = io.StringIO()
    with Communicator() as comm:
        comm.barrier()
        if rank == LATE:
            time.sleep(LATE_S)
        comm.all_reduce(np.ones(1000, np.float32))
        if rank == 0:
            wait_until(lambda: "goes on" in printed.getvalue(), "the call goes on")
        comm.barrier()
    return printed.getvalue().splitlines()


def test_stalled_call_is_reported_by_rank_0_until_it_goes_on() -> None:
    printed = run_ranks(
        waits_for_late_rank, 3, env={"HCCL_STALL_WARNING_S": str(WARNING_S), "HCCL_NODE_ID": "0"}
    )
    assert printed[1:] == [[], []]
    *stalled, end = printed[0]
    assert 1 <= len(stalled) <= 4, stalled
    assert re.fullmatch(
        r"hccl: all_reduce\(sum, float32\[1000\]\) number 2 of communicator default: no progress "
        r"for \d+ s; rank 2 \(host .*, pid \d+\), which is computing, has not arrived; ranks 0, 1 "
        r"have arrived; rank \d is .* 4000 bytes moved.* \(HCCL_STALL_WARNING_S .*\)",
        stalled[0],
    ), stalled[0]
    assert re.fullmatch(
        r"hccl: all_reduce\(sum, float32\[1000\]\) number 2 of communicator default goes on after "
        r"\d+ s",
        end,
    ), end


def test_call_that_is_late_by_less_than_the_limit_prints_nothing() -> None:
    assert run_ranks(prints_nothing, 2) == [[], []]


def prints_nothing(rank: int, world_size: int) -> list[str]:
    sys.stderr = printed = io.StringIO()
    with Communicator() as comm:
        if rank == 1:
            time.sleep(1.5)
        comm.barrier()
    return printed.getvalue().splitlines()


@pytest.mark.parametrize(("value", "seconds"), [("", 30.0), ("0", 0.0), ("2.5", 2.5)])
def test_setting_is_a_number_of_seconds(
    value: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_STALL_WARNING_S", value)
    assert warning_from_environment() == seconds


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_setting_that_is_no_number_of_seconds_is_rejected(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_STALL_WARNING_S", value)
    with pytest.raises(InvalidArgumentError, match="HCCL_STALL_WARNING_S: expected a number"):
        warning_from_environment()
