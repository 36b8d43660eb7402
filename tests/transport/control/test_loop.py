"""The control thread's event loop."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from quiet_clock import HANG_S

from hccl_py.transport.control.loop import ControlLoop


def test_command_that_comes_in_the_midst_of_a_turn_waits_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ControlLoop, "longest_turn_s", 60.0)
    loop, ran = ControlLoop(lambda: None), threading.Event()
    select = loop.selector.select

    def select_after_a_command(timeout_s: float) -> Any:
        monkeypatch.setattr(loop.selector, "select", select)
        loop.post(ran.set)
        return select(timeout_s)

    monkeypatch.setattr(loop.selector, "select", select_after_a_command)
    loop.start()
    loop.post(lambda: None)
    assert ran.wait(HANG_S)
    loop.stop()
