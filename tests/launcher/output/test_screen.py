"""The launcher's own output: whole lines, readers that stop reading, readers that leave."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hccl_py.launcher.output.screen import Screen

LINE = b"x" * 999 + b"\n"
OPEN = (
    "import os, sys; from hccl_py.launcher.output.screen import open_screens;"
    "out, err = open_screens();"
)


def fill(screen: Screen) -> int:
    """Write until the screen is full, and return how many lines it took."""
    count = 0
    while not screen.is_full:
        screen.write(LINE)
        count += 1
    return count


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty])
def test_reader_that_stops_makes_nobody_wait_and_loses_nothing(
    opened: Callable[[], tuple[int, int]],
) -> None:
    # Like a terminal after Ctrl-S, or a pager.
    reader, writer = opened()
    screen = Screen(writer)
    before = fcntl.fcntl(writer, fcntl.F_GETFL)
    assert not before & os.O_NONBLOCK, "the shell shares this descriptor"
    count = fill(screen)
    found = b""
    while found.count(b"\n") < count:
        found += os.read(reader, 1 << 16)
        screen.on_writable()
    assert found.replace(b"\r\n", b"\n") == count * LINE
    for descriptor in {reader, writer, screen.fileno()}:
        os.close(descriptor)


def test_flush_ends_at_its_deadline() -> None:
    reader, writer = os.pipe()
    screen = Screen(writer)
    fill(screen)
    screen.flush(0.01)
    assert screen.is_waiting
    for descriptor in (reader, writer, screen.fileno()):
        os.close(descriptor)


def test_reader_that_leaves_is_noticed_and_the_rest_dropped() -> None:
    reader, writer = os.pipe()
    screen = Screen(writer)
    os.close(reader)
    screen.write(LINE)
    assert screen.is_lost
    screen.write(LINE)
    assert not screen.is_waiting
    for descriptor in (writer, screen.fileno()):
        os.close(descriptor)


def run(code: str, command: str) -> str:
    return subprocess.check_output(
        ["sh", "-c", command, "sh", sys.executable, "-c", OPEN + code], text=True, timeout=30
    )


def test_output_and_error_that_lead_to_one_place_keep_their_order(tmp_path: Path) -> None:
    code = "[(out.write(b'%d\\n' % i), err.write(b'e\\n')) for i in range(3)]"
    assert run(code, '"$@" 2>&1') == "0\ne\n1\ne\n2\ne\n"
    # A file is written where the shell left off.
    file = tmp_path / "out"
    assert run(code, f'(echo before; "$@" 2>/dev/null; echo after) > {file}; cat {file}') == (
        "before\n0\n1\n2\nafter\n"
    )
