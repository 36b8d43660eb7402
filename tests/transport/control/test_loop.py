"""The control thread's event loop."""

import socket
import threading
import time
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


def test_events_that_came_while_the_process_was_stopped_are_handled_before_services(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wait then ends as if its time was up: epoll's says nothing of what is ready."""
    loop, order = ControlLoop(lambda: None), list[str]()
    select = loop.selector.select

    def select_after_a_stop(timeout_s: float) -> Any:
        return [] if timeout_s else select(0)

    monkeypatch.setattr(loop.selector, "select", select_after_a_stop)
    readable, writable = socket.socketpair()
    loop.watch(readable, lambda: order.append("event"))

    class Late:
        def next_s(self) -> float:
            return time.monotonic() + 1

        def turn(self) -> None:
            order.append("late")
            loop.stop()

    loop.add(Late())
    writable.send(b"!")
    loop.run()
    assert order == ["event", "late"]
