"""What becomes of a rank's lines: screen, log file, and the last ones."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hccl_py.launcher.output.lines import LineReader
from hccl_py.launcher.output.options import Route
from hccl_py.launcher.output.rank_output import LogFile, RankOutput

BOTH = Route.SCREEN | Route.FILE


class Shown(list[bytes]):
    """Stands in for streams and a screen: keeps the readers and the lines."""

    def __init__(self) -> None:
        self.readers: list[LineReader] = []

    def read(self, reader: LineReader) -> None:
        self.readers.append(reader)

    def forget(self, reader: LineReader) -> None:
        pass

    def write(self, lines: bytes, source: object) -> None:
        self.append(lines)


def output_to(shown: Any, prefix: bytes = b"", log: LogFile | None = None) -> RankOutput:
    return RankOutput(shown, prefix, log)


def stream_of(output: RankOutput, shown: Any, route: Route) -> tuple[LineReader, int]:
    """Have the output read a pipe; return its reader and the end to write to."""
    descriptor, end = os.pipe()
    output.read(descriptor, route, shown, has_user=False)
    return shown.readers[-1], end


def test_both_streams_reach_screen_and_log_file(tmp_path: Path) -> None:
    (tmp_path / "logs/attempt_0").mkdir(parents=True, mode=0o755)  # of an earlier job
    log = LogFile(tmp_path / "logs", attempt=0, rank=3)
    shown = Shown()
    output = output_to(shown, b"[a:3] ", log)
    for text, route in ((b"out\n", BOTH), (b"err\n", Route.FILE), (b"no\nfile", Route.SCREEN)):
        reader, end = stream_of(output, shown, route)
        os.write(end, text)
        reader.on_readable()
        os.close(end)
    assert shown == [b"[a:3] out\n", b"[a:3] no\n"]
    assert output.end() == ["out", "err", "no", "file"]
    output.close()
    assert shown[2:] == [b"[a:3] file\n"]
    path = tmp_path / "logs/attempt_0/rank_3.log"
    assert path.read_bytes() == b"out\nerr\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_log_replaces_what_has_its_name_and_follows_no_link(tmp_path: Path) -> None:
    folder, of_worth = tmp_path / "attempt_0", tmp_path / "of_worth"
    folder.mkdir()
    of_worth.write_text("kept")
    (folder / "rank_0.log").symlink_to(of_worth)
    (folder / "rank_1.log").hardlink_to(of_worth)
    os.mkfifo(folder / "rank_2.log")  # to open it would wait for a reader
    for rank in range(3):
        log = LogFile(tmp_path, 0, rank)
        log.write(b"line\n")
        log.close()
        assert not log.path.is_symlink()
        assert log.path.read_bytes() == b"line\n"
    assert of_worth.read_text() == "kept"


def test_link_in_place_of_the_folder_of_an_attempt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "attempt_0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError) as caught:
        LogFile(tmp_path, 0, 0)
    assert caught.value.filename == str(tmp_path / "attempt_0")
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_only_the_last_lines_are_kept_and_long_ones_cut() -> None:
    shown = Shown()
    output = output_to(shown)
    reader, end = stream_of(output, shown, Route.SCREEN)
    os.write(end, b"".join(b"%d\n" % number for number in range(1000)) + b"\xff" * 9000)
    os.close(end)
    while reader.is_open:
        reader.on_readable()
    last = output.end()
    assert (last[0], last[-2], last[-1]) == ("961", "999", "�" * 1000)


def test_full_disk_ends_the_log_and_not_the_job(tmp_path: Path) -> None:
    log = LogFile(tmp_path, attempt=0, rank=0)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, log._descriptor)
    os.close(full)
    shown = Shown()
    output = output_to(shown, b"[a:0] ", log)
    reader, end = stream_of(output, shown, BOTH)
    for text in (b"one\n", b"two\n"):
        os.write(end, text)
        reader.on_readable()
    os.close(end)
    output.close()
    complaint = f"[a:0] hccl-launch: {log.path} ends here: No space left on device\n"
    assert shown == [b"[a:0] one\n", complaint.encode(), b"[a:0] two\n"]
