"""Every public method beside every other, from two threads of each rank, at random moments."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from leftovers import settled_holdings, wait_for_return
from quiet_clock import HANG_S
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until

from hccl_py import Communicator, HcclError, Work, capture, get_unique_id, group
from hccl_py.graphs.graph import Graph

CALL_S, REPLAY_S = 0.2, 10.0  # of a call that finds no partner


class Rank(NamedTuple):
    """What the methods below are called with: both threads of a rank share all but the data."""

    comm: Communicator
    calls: Any  # the communicator, or its nonblocking calls
    data: npt.NDArray[np.float64]  # a row for each rank
    graph: Graph
    work: Work  # fails: no message comes
    folder: str


def captured(rank: Rank) -> None:
    with capture() as graph:
        rank.comm.all_reduce(rank.data)
    graph.replay()


def grouped(rank: Rank) -> None:
    with group():
        rank.comm.recv(rank.data[0], None, 2)
        rank.comm.send(rank.data[1], 1 - rank.comm.rank, 2)
        rank.calls.barrier()


def exposed(rank: Rank) -> None:
    window = rank.comm.window(rank.data, timeout_s=CALL_S)
    window.put(np.ones(1), 1 - rank.comm.rank)
    window.close(timeout_s=CALL_S)


def grown(rank: Rank) -> None:
    """Nobody comes."""
    uid = get_unique_id(CALL_S) if rank.comm.rank == 0 else None
    rank.comm.grow(uid, timeout_s=CALL_S).close()


def at_root(rank: Rank, root: int) -> Any:
    return rank.data if rank.comm.rank == root else None


METHODS: dict[str, Callable[[Rank], object]] = {
    # of Communicator
    "abort": lambda on: on.comm.abort(),
    "all_gather": lambda on: on.calls.all_gather(on.data, on.data[on.comm.rank]),
    "all_reduce": lambda on: on.calls.all_reduce(on.data),
    "all_to_all": lambda on: on.calls.all_to_all(on.data, on.data),
    "barrier": lambda on: on.calls.barrier(),
    "broadcast": lambda on: on.calls.broadcast(on.data, 0),
    "close": lambda on: on.comm.close(),
    "compression": lambda on: on.comm.compression,
    "dump_flight_recorder": lambda on: on.comm.dump_flight_recorder(on.folder),
    "exclude_from_groups": lambda on: on.comm.exclude_from_groups(),
    "gather": lambda on: on.calls.gather(at_root(on, 1), on.data[on.comm.rank], 1),
    "grow": grown,
    "recv": lambda on: on.calls.recv(on.data[0], None),
    "reduce": lambda on: on.calls.reduce(on.data, 0),
    "reduce_scatter": lambda on: on.calls.reduce_scatter(on.data[on.comm.rank], on.data),
    "scatter": lambda on: on.calls.scatter(on.data[on.comm.rank], at_root(on, 0), 0),
    "send": lambda on: on.calls.send(on.data[0], 1 - on.comm.rank),
    "shrink": lambda on: on.comm.shrink(timeout_s=CALL_S).close(),
    "split": lambda on: on.comm.split(0),
    "statistics": lambda on: on.comm.statistics(),
    "subset": lambda on: on.comm.subset([0, 1], "two").close(),
    "timeout_s": lambda on: setattr(on.comm, "timeout_s", on.comm.timeout_s),
    "window": exposed,
    # of Work
    "done": lambda on: on.work.done(),
    "exception": lambda on: on.work.exception(),
    "source": lambda on: on.work.source,
    "wait": lambda on: on.work.wait(CALL_S),
    # and what stands in no class, or is written otherwise
    "capture": captured,
    "entries": lambda on: on.comm.flight_recorder.entries(),
    "exit": lambda on: on.comm.__exit__(None, None, None),
    "fails": lambda on: on.comm.__exit__(ValueError, ValueError("on purpose"), None),
    "group": grouped,
    "replay": lambda on: on.graph.replay(),
    "replay in the background": lambda on: on.graph.replay(async_op=True).wait(),
    "repr": lambda on: repr((on.comm, on.graph)),
}
ALWAYS = [("close", "close"), ("close", "exit"), ("subset", "close"), ("all_reduce", "close")]


def test_every_public_method_is_called_beside_others() -> None:
    public = {name for of in (Communicator, Work) for name in dir(of) if name[0] != "_"}
    assert public - {"entry", "native"} <= {*METHODS}


def prepared(comm: Communicator, count: int, folder: str) -> Rank:
    comm.barrier()
    with capture() as graph:
        comm.all_reduce(np.zeros(count), timeout_s=REPLAY_S)
    comm.timeout_s = CALL_S
    work = comm.nonblocking.recv(np.ones(1), None, 1)
    return Rank(comm, comm, np.ones((2, count)), graph, work, folder)


def call_at_once(rank: Rank, names: tuple[str, str], seed: str) -> None:
    """Call both methods, each from a thread of its own, at about the same time."""
    random = Random(seed)  # what both ranks have in common

    def call(name: str, is_blocking: bool, pause_s: float) -> None:
        data = rank.data.copy()
        calls = rank.comm if is_blocking else rank.comm.nonblocking
        time.sleep(pause_s)
        with contextlib.suppress(HcclError):
            METHODS[name](rank._replace(calls=calls, data=data))
            assert not is_blocking or np.isin(data, (1.0, 2.0, 4.0)).all()

    with ThreadPoolExecutor(2) as threads:
        started = [
            threads.submit(call, name, random.random() < 0.5, 0.003 * random.random())
            for name in names
        ]
        for future in started:
            future.result(HANG_S)


def one_round(names: tuple[str, str], seed: str, folder: str) -> None:
    random = Random(seed)
    count = random.choice([10, 2_000, 60_000])
    with ThreadRanks(random.choice(["aa", "ab"])) as ranks:
        both = ranks.run(lambda comm: prepared(comm, count, folder))
        ranks.run(lambda comm: call_at_once(both[comm.rank], names, seed))


def calls_at_once(rank: int, world_size: int, seed: int, rounds: int) -> None:
    with ThreadRanks("ab") as ranks:  # the one progress thread and the arena stay
        ranks.run(lambda comm: comm.nonblocking.all_reduce(np.ones(100_000)).wait())
    wait_until(lambda: threading.active_count() == 1, "the flight recorder's thread ends")
    before = settled_holdings()
    failures: list[object] = []
    threading.excepthook = failures.append
    random = Random(seed)
    pairs = [(random.choice([*METHODS]), random.choice([*METHODS])) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        for number, names in enumerate([*ALWAYS, *pairs]):
            print(number, names, flush=True)
            one_round(names, f"{seed}/{number}", folder)
    with ThreadRanks("aa") as ranks:
        ranks.run(lambda comm: comm.subset([0, 1], "afterwards").close())
    assert not failures
    assert wait_for_return(before) == []


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 3), pytest.param(2, 800, marks=pytest.mark.nightly("faults"))]
)
def test_two_methods_at_once_from_two_threads_damage_nothing(seed: int, rounds: int) -> None:
    run_ranks(calls_at_once, 1, seed, rounds, timeout_s=HANG_S + 4 * rounds)
