"""A call without progress: one line on the coordinator's stderr, more at growing intervals."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from rank_processes import wait_for_every_report
from ranks import run_ranks
from thread_ranks import wait_until

from hccl_py import Communicator, InvalidArgumentError
from hccl_py.diagnosis.stall import warning_from_environment

LATE = 2
WARNING_S = 0.4
CALL = "number 2 of"


def waits_for_late_rank(rank: int, world_size: int, folder: Path) -> list[str]:
    """Return what this rank printed while a rank came late: after the second line of rank 0."""
    wait_for_every_report()
    sys.stderr = printed = io.StringIO()
    data = np.ones(1000, np.float32)

    def lines() -> list[str]:  # a slow start may be a stall, too
        return [line for line in printed.getvalue().splitlines() if CALL in line]

    with Communicator() as comm:
        comm.barrier()
        if rank == 1:
            work = comm.nonblocking.all_reduce(data)
            (folder / "rank 1 has called").touch()
            work.wait()
        elif rank == LATE:
            wait_until((folder / "two lines").exists, "the stall is reported twice")
            comm.all_reduce(data)
        else:
            wait_until((folder / "rank 1 has called").exists, "rank 1 calls")
            work = comm.nonblocking.all_reduce(data)
            wait_until(lambda: len(lines()) >= 2, "the stall is reported twice")
            (folder / "two lines").touch()
            work.wait()
            wait_until(lambda: "continues" in lines()[-1], "the call continues")
        comm.barrier()
    return lines()


def test_stalled_call_is_reported_by_rank_0_until_it_goes_on(tmp_path: Path) -> None:
    env = {"HCCL_STALL_WARNING_S": str(WARNING_S), "HCCL_NODE_ID": "0"}
    printed = run_ranks(waits_for_late_rank, 3, tmp_path, env=env)
    assert printed[1:] == [[], []]
    *stalled, end = printed[0]
    for line in stalled:
        assert re.fullmatch(
            r"hccl: all_reduce\(sum, float32\[1000\]\) number 2 of communicator default: no "
            r"progress for \d+ s; rank 2 \(host .*, pid \d+\), which is in no collective, has not "
            r"arrived; ranks 0, 1 have arrived; rank \d is .* 4000 bytes moved.* "
            r"\(HCCL_STALL_WARNING_S .*\)",
            line,
        ), line
    assert re.fullmatch(
        r"hccl: all_reduce\(sum, float32\[1000\]\) number 2 of communicator default continues "
        r"after \d+ s",
        end,
    ), end


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
