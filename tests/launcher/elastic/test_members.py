"""Who takes part in an elastic job, over a real store: clocks may differ, and waiting is said."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest
from quiet_clock import HANG_S
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousSettings,
    RendezvousTimeout,
    _NodeDesc,
)

from hccl_py.launcher import own_lines
from hccl_py.launcher.elastic.members import Members

HERE, THERE = _NodeDesc("a", 1, 0), _NodeDesc("b", 1, 0)
KEEP_ALIVE_S = 0.05
SILENT_S = 3 * KEEP_ALIVE_S
LIMIT_S = HANG_S


@pytest.fixture
def views() -> tuple[Members, Members]:
    """Return the view of the job that this node has, and that of another one."""
    store = TCPStore("127.0.0.1", 0, is_master=True)
    keep_alive = timedelta(seconds=KEEP_ALIVE_S)
    settings = RendezvousSettings("job", 2, 3, RendezvousTimeout(), keep_alive, 3)
    backend = C10dRendezvousBackend(store, "job")
    return Members(backend, settings, 0), Members(backend, settings, 0)


def beat(view: Members, node: _NodeDesc, clock_s: float = 0.0) -> None:
    """Say that a node is there, by a clock that may be wrong."""
    view.sync()
    view.state.participants[node] = 0
    view.state.last_heartbeats[node] = datetime.now(timezone.utc) + timedelta(seconds=clock_s)
    view.mark_dirty()
    view.sync()


@pytest.mark.parametrize("clock_s", [-20.0, 40.0])
def test_node_whose_clock_is_wrong_takes_part_until_it_is_silent(
    views: tuple[Members, Members], clock_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, other = views
    until_s = time.monotonic() + 3 * SILENT_S
    while time.monotonic() < until_s:
        beat(other, THERE, clock_s)
        mine.sync()
        assert THERE in mine.state.participants
    said = capsys.readouterr().err
    way = "behind" if clock_s < 0 else "ahead of"
    assert said.startswith(f"hccl-launch: the clock of b is {abs(clock_s):.0f} s {way} the one of ")
    assert said.count("\n") == 2, "once by each view"
    silent_since_s = time.monotonic()
    while THERE in mine.state.participants:
        assert time.monotonic() < silent_since_s + LIMIT_S
        mine.sync()
    assert time.monotonic() - silent_since_s >= SILENT_S * 0.9


def test_wait_is_said_once_with_who_is_here(
    views: tuple[Members, Members],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(own_lines, "_FIRST_LINE_S", 0.01)
    mine, _ = views
    until_s = time.monotonic() + LIMIT_S
    said = ""
    while not said and time.monotonic() < until_s:
        beat(mine, HERE)
        mine.sync()
        said = capsys.readouterr().err
    assert said.startswith("hccl-launch: a here; waiting for 1 more of at least 2 nodes, for ")
    mine.sync()
    assert capsys.readouterr().err == ""
