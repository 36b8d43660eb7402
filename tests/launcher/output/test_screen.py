"""The launcher's own output: whole lines, readers that stop reading, readers that leave."""

import fcntl
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from hccl_py.launcher.output.screen import Console

LINE = b"x" * 999 + b"\n"
OPEN = (
    "import os, sys; from hccl_py.launcher.output.screen import open_screens;"
    "out, err = open_screens();"
)


def fill(screen: Console) -> int:
    """Write until the screen is full, and return how many lines it took."""
    count = 0
    while not screen.is_full:
        screen.write(LINE)
        count += 1
    return count


def pair_of_sockets() -> tuple[int, int]:
    """Open what cannot be opened again."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty, pair_of_sockets])
def test_reader_that_stops_makes_nobody_wait_and_loses_nothing(
    opened: Callable[[], tuple[int, int]],
) -> None:
    # Like a terminal after Ctrl-S, or a pager.
    reader, writer = opened()
    screen = Console(writer)
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
    screen = Console(writer)
    fill(screen)
    screen.flush(0.01)
    assert screen.is_waiting
    for descriptor in (reader, writer, screen.fileno()):
        os.close(descriptor)


def test_status_stays_below_the_lines_and_leaves_nothing() -> None:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 11, 0, 0))
    screen = Console(terminal)
    assert screen.is_terminal
    screen.show("one, which is long")
    screen.write(b"line\n")
    screen.show("two")
    screen.show("")
    screen.write(b"last\n")
    expected = [b"", b"one, which", b"line\r\none, which", b"two", b"last\r\n"]
    found = b""
    while not found.endswith(b"last\r\n"):  # a terminal hands on what it has so far
        found += os.read(reader, 1 << 16)
    assert found.split(b"\r\x1b[K") == expected
    for descriptor in (reader, terminal, screen.fileno()):
        os.close(descriptor)


def run(code: str, command: str) -> str:
    return subprocess.check_output(
        ["sh", "-c", command, "sh", sys.executable, "-c", OPEN + code], text=True, timeout=30
    )


def test_output_and_error_share_a_screen_only_where_both_lead_there(tmp_path: Path) -> None:
    code = "out.write(b'%d\\n' % (out is err))"
    assert run(code, '"$@" 2>&1') == "1\n"
    # A file is written where the shell left off.
    file = tmp_path / "out"
    command = f'(echo before; "$@" 2>/dev/null; echo after) > {file}; cat {file}'
    assert run(code, command) == "before\n0\nafter\n"
