"""With HCCL_DEBUG=1 every call knows the user's line; without, nothing of that is there."""

from pathlib import Path

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from hccl_py import Communicator
from hccl_py.transport import _core


def _line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def _calls(comm: Communicator) -> dict[int, str]:
    comm.all_reduce(np.ones(3, np.float32))  # the first
    work = comm.nonblocking.broadcast(np.ones(3_000_000), 0)  # the second
    work.wait()
    comm.all_gather(np.zeros((comm.world_size, 2)), np.ones(2))  # the third
    return {call.number: f"{call} at {call.site}" for call in comm._state.reporter.call_log()}


def test_calls_are_told_with_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_DEBUG", "1")
    monkeypatch.chdir(Path(__file__).parent)
    with ThreadRanks("aa") as ranks:
        for tail in ranks.run(_calls):
            name = Path(__file__).name
            assert tail == {
                1: f"all_reduce(sum, float32[3]) at {name}:{_line_of('# the first')}",
                2: f"broadcast(src=0, float64[3000000]) at {name}:{_line_of('# the second')}",
                3: f"all_gather(float64[4 in all]) at {name}:{_line_of('# the third')}",
            }


def test_flight_recorder_has_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_DEBUG", "1")
    with ThreadRanks("aa") as ranks:
        ranks.run(_calls)
        (frame,) = ranks.communicators[0].flight_recorder.entries()[0]["frames"]
        assert frame == {"filename": __file__, "line": _line_of("# the first"), "name": "_calls"}


def test_nothing_is_noted_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HCCL_DEBUG", raising=False)
    with ThreadRanks("aa") as ranks:
        for comm in ranks.communicators:
            assert isinstance(comm.entry, _core.CallEntry)
        assert ranks.run(_calls)[0][1] == "all_reduce(sum, float32[3]) at "
