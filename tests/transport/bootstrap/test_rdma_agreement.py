"""All ranks use RDMA, or none: a device that fails on one rank leads all of them to TCP."""

import itertools
from collections.abc import Collection, Iterable

import numpy as np
import pytest
from bootstrapped import WaitingStore
from thread_ranks import ThreadRanks

from hccl_py import Communicator
from hccl_py.transport.bootstrap import mesh
from hccl_py.transport.bootstrap.rdma_agreement import first_problem
from hccl_py.transport.bootstrap.sealed_store import SealedStore
from hccl_py.transport.deadline import Deadline
from hccl_py.transport.errors import BootstrapError
from hccl_py.transport.providers.verbs import lanes

PROBLEM = "ibv_create_cq on mlx5_1: Cannot allocate memory"


class _Device:
    """Stands for `RdmaLanes`: the second that is made has no completion queue."""

    made = itertools.count()

    def __init__(self, num_lanes: int, interfaces: Collection[str]) -> None:
        self._number = next(_Device.made)

    def make(self, ranks: Iterable[int], slot_bytes: int) -> None:
        if self._number == 1:
            raise BootstrapError(PROBLEM)


def test_device_that_fails_on_one_rank_leads_all_to_tcp(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_Device, "made", itertools.count())
    monkeypatch.setattr(mesh, "usable_rdma_family", lambda interfaces: "IPv4")
    monkeypatch.setattr(lanes, "RdmaLanes", _Device)

    def add(comm: Communicator) -> None:
        data = np.full(1000, comm.rank + 1.0)
        comm.all_reduce(data)
        assert (data == 6).all()
        devices = comm.statistics()["devices"]
        assert devices["tcp"]["messages"] > 0 == devices["verbs"]["messages"], devices

    with caplog.at_level("WARNING", "hccl_py.transport"), ThreadRanks("abc") as ranks:
        ranks.run(add)
    (line,) = (one.getMessage() for one in caplog.records if "TCP instead" in one.getMessage())
    assert PROBLEM in line and ": rank " in line


def no_look() -> None:
    """Find no failure."""


@pytest.mark.parametrize("problems", [["", "", ""], ["", "b", "c"], ["a", "", ""], ["", "", "c"]])
def test_every_rank_hears_of_the_first_problem(problems: list[str]) -> None:
    store = WaitingStore()
    expected = next(filter(None, problems), "")
    heard = []
    for rank in (1, 2):
        SealedStore(store, None).set(f"rdma/{rank}", problems[rank].encode())
    for rank in (0, 1, 2):
        sealed = SealedStore(store, None)
        heard.append(first_problem(sealed, rank, 3, problems[rank], Deadline(10), no_look))
    assert heard == [expected] * 3


def test_rank_that_never_answers_is_waited_for_until_the_deadline() -> None:
    with pytest.raises(BootstrapError, match="rendezvous failed"):
        first_problem(SealedStore(WaitingStore(), None), 1, 2, "", Deadline(0.05), no_look)
