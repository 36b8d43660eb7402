"""What nodes tell each other of a failure, over a real store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import TCPStore

from hccl_py.launcher.elastic.board import Board, OtherNodeFailedError
from hccl_py.launcher.failure import Failure, first_failure


def failure(rank: int, at_s: float) -> Failure:
    return Failure(
        *(rank, rank, 0, f"host{rank}", 9, 3, "ValueError", "it failed", "", at_s, ""),
        last_lines=("the", "end"),
    )


def test_nodes_agree_on_the_first_failure_with_clocks_that_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = TCPStore("127.0.0.1", 0, is_master=True)
    stores = served, TCPStore("127.0.0.1", served.port)
    clocks_s = 1_000_000.0, 5_000.0
    boards = []
    for store, clock_s in zip(stores, clocks_s, strict=True):
        monkeypatch.setattr("time.time", lambda clock_s=clock_s: clock_s)
        boards.append(Board(store, "job", 1, 2))
    # By its clock the failure of rank 0 came long after that of rank 1, but it was the first.
    mine = [failure(0, clocks_s[0] + 1), failure(1, clocks_s[1] + 2)]
    assert not any(board.has_failures() for board in boards)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda at: boards[at].exchange([mine[at]]), range(2)))
    assert all(board.has_failures() for board in boards)
    for each, clock_s in zip(found, clocks_s, strict=True):
        assert first_failure(each) == failure(0, clock_s + 1)
        assert sorted(each)[1] == failure(1, clock_s + 2)


def test_node_that_ends_the_job_says_why_to_the_others() -> None:
    served = TCPStore("127.0.0.1", 0, is_master=True)
    ends, other = (Board(store, "job", 1, 2) for store in (served, served.clone()))
    other.check_end()
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(ends.end, "rank 1 of 2 failed", 3)
        with pytest.raises(OtherNodeFailedError, match=r"^rank 1 of 2 failed$") as raised:
            other.wait_for_end(1, 30.0)
        ended.result()
    assert raised.value.exit_code == 3
