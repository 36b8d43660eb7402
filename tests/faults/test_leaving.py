"""A rank that leaves finishes what it has started, each call until its own deadline.

A rank that leaves while others still call is no crash: all say that it left, and after what.
"""

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ended_scripts import end_as_script
from injected_groups import GROUPS, Group
from injections import ONE_NODE, RAISE_S, Layout
from leftovers import settled_holdings, wait_for_return
from quiet_clock import HANG_S, Moment
from random_calls import Array, Call
from rank_processes import on_nodes
from ranks import run_ranks
from thread_ranks import wait_until
from tiers import by_night

from hccl_py import (
    AbortedError,
    Communicator,
    InvalidArgumentError,
    PeerLostError,
    capture,
    group,
)
from hccl_py.transport.process_lifecycle import LifecycleStage, register

NUM_CALLS = 41
LEAVER = 3
CALL = Call("all_reduce", "float32", 25, 0, blocks=True, registered=False)


def end_in_finally(group: Group) -> None:
    try:
        raise ValueError("bad batch")
    except ValueError:
        group.close()


WAYS: dict[str, tuple[str, Callable[[Group], None]]] = {
    "close": ("native", lambda group: group.close()),
    "finally of an exception": ("torch", end_in_finally),
    "end of script": ("native", lambda group: end_as_script()),
    "end of script, torch": ("torch", lambda group: end_as_script()),
    "sys.exit(0)": ("native", lambda group: end_as_script(SystemExit(0))),
    "destroy_process_group": ("torch", lambda group: group.close()),
}
FOUR_ON_TWO = Layout("2x2", 4, 2)
MORE = pytest.mark.nightly("faults")


def all_but_one_go_on(rank: int, world_size: int, way: str) -> tuple[object, ...] | None:
    tempfile.tempdir = os.environ["TMPDIR"]
    api, leave = WAYS[way]
    GROUPS[api]("warm-up").close()
    before = settled_holdings(os.environ["TMPDIR"])
    group = GROUPS[api]("job")
    data = np.ones(CALL.count, CALL.dtype)
    for _ in range(NUM_CALLS):
        group.calls.start(CALL, data, data)
    if rank == LEAVER:
        leave(group)
        return None
    told = _call_once_more(group, data)
    group.close()
    return *told, str(wait_for_return(before, os.environ["TMPDIR"]))


def _call_once_more(group: Group, data: Array) -> tuple[float, str, object, object]:
    """Return how long it took to raise, and what it told; nothing keeps the error alive."""
    began = Moment.now()
    try:
        group.calls.start(CALL, data, data)
    except group.error as error:
        took_s = Moment.now() - began
        return took_s, str(error), getattr(error, "cause", None), getattr(error, "rank", None)
    raise AssertionError(f"rank {LEAVER} has left")


@pytest.mark.parametrize(
    ("way", "layout"),
    [
        pytest.param(way, (ONE_NODE, FOUR_ON_TWO)[i % 2], id=way, marks=() if i < 2 else MORE)
        for i, way in enumerate(WAYS)
    ],
)
def test_leaver_is_told_from_a_crash(tmp_path: Path, way: str, layout: Layout) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    stories = run_ranks(
        all_but_one_go_on,
        layout.world_size,
        way,
        env=lambda rank: {
            "HCCL_NODE_ID": str(layout.node_of(rank)),
            "TMPDIR": str(folder),
            "HCCL_TRACE_DIR": str(tmp_path / "traces"),
        },
        victims={LEAVER},
    )
    told = [story for story in stories if story is not None]
    assert len(told) == layout.world_size - 1
    assert len({story[1:] for story in told}) == 1, told
    for took_s, text, cause, culprit, left in told:
        assert f"rank {LEAVER}" in text
        assert f"left after collective {NUM_CALLS}" in text
        assert ("(handling ValueError: bad batch)" in text) == (way == "finally of an exception")
        assert "died" not in text
        assert (cause, culprit) == ("left", LEAVER)
        assert took_s < RAISE_S
        assert left == "[]"


FIRST = 0


def torch_futures(data: torch.Tensor, pg: Any) -> None:
    """Let a callback start the second collective."""
    work: Any = dist.all_reduce(data, async_op=True)
    work.get_future().then(lambda done: dist.all_reduce(done.value()[0], async_op=True))


def torch_transfers(data: torch.Tensor, pg: Any) -> None:
    """Send and receive a column of a matrix, which the group has to copy."""
    if dist.get_rank() == FIRST:
        dist.isend(data, 1 - FIRST)
    else:
        dist.irecv(data, FIRST)


def torch_coalesced(data: torch.Tensor, pg: Any) -> None:
    with dist.distributed_c10d._coalescing_manager(async_ops=True):
        dist.all_reduce(data)
        dist.all_reduce(torch.ones(3))


def torch_collective(data: torch.Tensor, pg: Any) -> None:
    dist.all_reduce(data, group=pg, async_op=True)


TORCH: dict[str, tuple[Callable[[torch.Tensor, Any], object], float]] = {
    "collective": (torch_collective, 2),
    "subgroup": (torch_collective, 2),
    "future": (torch_futures, 4),
    "transfers": (torch_transfers, 1),
    "coalesced": (torch_coalesced, 2),
}
"""What nobody waits for, and what each element of the data becomes, which is 1 on both ranks."""


def captured(comm: Communicator, data: Array) -> None:
    zeros = np.zeros_like(data)
    with capture() as graph:
        comm.all_reduce(zeros)
        comm.all_reduce(data)
    data[:] = 1
    graph.replay(async_op=True)


def grouped(comm: Communicator, data: Array) -> None:
    with group():
        comm.nonblocking.all_reduce(data)


NATIVE: dict[str, Callable[[Communicator, Array], object]] = {
    "call": lambda comm, data: comm.nonblocking.all_reduce(data),
    "group": grouped,
    "graph": captured,
}


def come_when_the_other_leaves(rank: int, late: int, key: str, comm: Communicator) -> None:
    """Return on the late rank when the other one waits in its engine: it is leaving."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    core = comm._state.core

    def tell() -> None:
        # A send may end while nobody receives: the rank has left before it is seen to wait.
        wait_until(
            lambda: core.caller()[2] or core.failed() or comm._state.core is None,
            "the other rank leaves",
        )
        store.set(key, "")

    if rank == late:
        store.get(key)
    else:
        threading.Thread(target=tell, daemon=True).start()


def leave_what_was_started(rank: int, world_size: int, late: int) -> None:
    for name, (start, expected) in TORCH.items():
        dist.init_process_group("hccl", timeout=timedelta(seconds=HANG_S))
        matrix = torch.ones(3, 3)
        pg: Any = dist.new_group([0, 1]) if name == "subgroup" else dist.group.WORLD
        come_when_the_other_leaves(rank, late, name, pg.communicator)
        start(matrix[:, 1], pg)
        dist.destroy_process_group()
        assert matrix[:, 1].tolist() == [expected] * 3, name
    for name, begin in NATIVE.items():
        for way in ("close", "with"):
            comm, data = Communicator(name=f"{name} {way}"), np.ones(300_000)
            if name != "graph":
                come_when_the_other_leaves(rank, late, name + way, comm)
            begin(comm, data)
            if way == "close":
                comm.close()
            else:
                with suppress(SystemExit), comm:
                    raise SystemExit
            assert (data == 2).all(), (name, way)
            with pytest.raises(AbortedError, match="closed"):
                comm.barrier()


@pytest.mark.parametrize(
    ("nodes", "late"),
    [(2, 1), *by_night("faults", (1, 0), (1, 1), (2, 0))],
)
def test_close_finishes_what_nobody_waits_for(nodes: int, late: int) -> None:
    run_ranks(leave_what_was_started, 2, late, env=on_nodes(nodes, 2))


def exit_with_a_call_under_way(rank: int, world_size: int, api: str, late: int, path: str) -> None:
    job = GROUPS[api]("job")
    data = np.ones(5)
    come_when_the_other_leaves(rank, late, "exit", job.comm)
    job.comm.nonblocking.all_reduce(data)
    register(
        LifecycleStage.LAUNCHER_STORES,
        at_exit=lambda: Path(path, str(rank)).write_text(str(data.tolist())),
    )
    end_as_script(SystemExit(0) if rank else None)


@pytest.mark.parametrize(("api", "late"), [("native", 0), *by_night("faults", ("torch", 1))])
def test_exit_finishes_what_nobody_waits_for(tmp_path: Path, api: str, late: int) -> None:
    run_ranks(exit_with_a_call_under_way, 2, api, late, str(tmp_path), victims={0, 1})
    assert [path.read_text() for path in tmp_path.iterdir()] == [str([2.0] * 5)] * 2


def close_what_a_dead_rank_left(rank: int, world_size: int) -> None:
    comm = Communicator()
    messages: list[str] = []
    log = logging.getLogger("hccl_py")
    log.addHandler(handler := logging.Handler())
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    comm.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = comm.nonblocking.all_reduce(np.ones(3))
    comm.close()
    assert any("close(): " in one and "rank 1" in one for one in messages), messages
    with pytest.raises(PeerLostError) as caught:
        work.wait()
    assert caught.value.rank == 1


def test_close_logs_the_failure_of_what_nobody_waits_for() -> None:
    run_ranks(close_what_a_dead_rank_left, 2, victims={1})


def close_in_spite_of_an_exception(rank: int, world_size: int) -> None:
    comm = Communicator()
    comm.barrier()
    with pytest.raises(AbortedError if rank else ValueError, match="bad batch"), comm:
        work = comm.nonblocking.all_reduce(np.ones(3))
        if rank == 0:
            raise ValueError("bad batch")
        comm.nonblocking.recv(np.ones(3), 0)  # never sent
        work.wait()
        comm.barrier()


def test_exception_ends_at_once_what_nobody_waits_for() -> None:
    run_ranks(close_in_spite_of_an_exception, 2)


def leave_after_a_refused_argument(rank: int, world_size: int, api: str, goes_on: bool) -> str:
    job, data = GROUPS[api]("job"), np.ones(4, np.float32)
    make = {"native": lambda x: x, "torch": torch.from_numpy}[api]

    def call(array: Any) -> None:
        if api == "native":
            job.comm.all_reduce(array)  # type: ignore[attr-defined]
        else:
            dist.all_reduce(array)

    call(make(data))
    if rank == 0:
        with pytest.raises(InvalidArgumentError):
            call(make(np.broadcast_to(data[:1], 4)))
    if goes_on:
        call(make(data))
    if rank == 0:
        job.close()
        return ""
    with pytest.raises((PeerLostError, dist.DistBackendError)) as raised:
        call(make(data))
    job.close()
    return str(raised.value)


@pytest.mark.parametrize("api", ["native", *by_night("faults", "torch")])
def test_leaver_whose_last_argument_was_refused_says_so(api: str) -> None:
    for goes_on in (False, True):
        _, text = run_ranks(leave_after_a_refused_argument, 2, api, goes_on)
        assert "rank 0" in text
        assert ("InvalidArgumentError" in text) != goes_on, text
