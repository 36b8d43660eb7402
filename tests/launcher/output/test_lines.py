"""Whole lines out of a pipe, whatever a rank writes into it."""

import os
import select
from collections.abc import Iterator

import pytest

from hccl_py.launcher.output import lines
from hccl_py.launcher.output.lines import MARK, MAX_LINE_BYTES, LineReader


class Pipe:
    """A pipe with a reader, and the lines that came out of it."""

    def __init__(self) -> None:
        descriptor, self.end = os.pipe()
        self.lines: list[bytes] = []
        self.reader = LineReader(descriptor, self.lines.extend)

    def write(self, data: bytes) -> list[bytes]:
        """Write, read all of it, and return the lines so far."""
        while data:
            data = data[os.write(self.end, data[:1000]) :]
            while select.select([self.reader], [], [], 0)[0]:
                self.reader.on_readable()
        return self.lines

    def end_it(self) -> list[bytes]:
        os.close(self.end)
        self.reader.on_readable()
        assert not self.reader.is_open
        return self.lines


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    it = Pipe()
    yield it
    it.reader.close()


@pytest.fixture
def bar(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> Pipe:
    """A pipe whose reader's clock stands still until a test moves it."""
    monkeypatch.setattr(lines.time, "monotonic", lambda: 100.0)
    return pipe


def test_lines_are_handed_on_when_they_are_whole(pipe: Pipe) -> None:
    assert pipe.write(b"one\ntw") == [b"one\n"]
    assert pipe.reader.unfinished == b"tw"
    assert pipe.write(b"o\n\nthree\n") == [b"one\n", b"two\n", b"\n", b"three\n"]


def test_close_reads_what_is_left_though_another_process_holds_the_pipe(pipe: Pipe) -> None:
    os.write(pipe.end, b"one\ntwo")
    pipe.reader.close()
    assert pipe.lines == [b"one\n", b"two\n"]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_long_line_comes_in_marked_pieces_and_nothing_is_lost(pipe: Pipe, end: bytes) -> None:
    text = os.urandom(3 * MAX_LINE_BYTES).replace(b"\n", b"").replace(b"\r", b"")
    pipe.write(text + end)
    assert len(pipe.reader.unfinished) <= MAX_LINE_BYTES
    *pieces, last = pipe.end_it()
    assert all(len(piece) == MAX_LINE_BYTES + len(MARK) + 1 for piece in pieces)
    assert b"".join(piece.removesuffix(MARK + b"\n") for piece in pieces) + last[:-1] == text


@pytest.mark.parametrize("form", ["\r%d%%", "%d%%\r"])
def test_bar_is_a_line_a_second_and_its_last_state(
    bar: Pipe, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    for percent in range(50):
        bar.write((form % percent).encode())
    assert bar.lines == [b"0%\n"]
    assert bar.reader.unfinished == b"49%"
    monkeypatch.setattr(lines.time, "monotonic", lambda: 101.0)
    for percent in range(50, 101):
        bar.write((form % percent).encode())
    assert bar.lines == [b"0%\n", b"50%\n"]
    assert bar.write(b"\nafter\n") == [b"0%\n", b"50%\n", b"100%\n", b"after\n"]


def test_bar_that_erases_itself_leaves_no_empty_line(bar: Pipe) -> None:
    assert bar.write(b"\r10%\r20%\r   \rdone\n") == [b"done\n"]
    assert bar.write(b"\r30%") == [b"done\n", b"30%\n"]
    assert bar.write(b"\r    \r\nafter\n") == [b"done\n", b"30%\n", b"after\n"]


def test_line_with_carriage_returns_that_is_no_text_is_no_bar(bar: Pipe) -> None:
    for data in (b"\x00\r\x01\n", b"\xff\xfe\rtext\n", b"\x02\r"):
        before = len(bar.lines)
        bar.write(data)
        assert b"".join(bar.lines[before:]) == (data if data.endswith(b"\n") else b"")
    assert bar.end_it()[-1] == b"\x02\r\n"


def test_line_end_of_windows_is_a_line_end(bar: Pipe) -> None:
    assert bar.write(b"one\r\ntwo\r") == [b"one\n", b"two\n"]
    assert bar.write(b"\nthree\r\n") == [b"one\n", b"two\n", b"three\n"]
