"""Files in folders that other users may write to: whose links lead where."""

import ctypes
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from hccl_py.transport.own_files import create_file, open_folder, open_private_folder

STRANGER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")


def opened(path: Path, mode: int = 0o777) -> Path:
    """Open a folder and return where it is."""
    descriptor = open_folder(path, mode)
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path.resolve()


def test_folder_is_made_with_those_above_and_opened_again(base: Path) -> None:
    made = base / "a" / "b" / "c"
    assert opened(made, 0o700) == made
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert stat.S_IMODE(made.parent.stat().st_mode) != 0o700
    assert opened(made) == made
    assert opened(base / "a" / ".." / "a" / "b") == base / "a" / "b"


@pytest.mark.parametrize("target", ["real/inner", "{base}/real/inner", "real/x/../inner"])
def test_own_links_are_followed_wherever_they_lead(base: Path, target: str) -> None:
    (base / "real" / "x").mkdir(parents=True)
    (base / "link").symlink_to(target.format(base=base))
    assert opened(base / "link" / "logs") == base / "real" / "inner" / "logs"


def test_link_to_itself_and_a_file_are_errors_with_the_path(base: Path) -> None:
    (base / "loop").symlink_to("loop")
    (base / "file").write_text("")
    for path, kind in ((base / "loop", OSError), (base / "file", NotADirectoryError)):
        with pytest.raises(kind) as caught:
            open_folder(path)
        assert caught.value.filename == str(path)
    with pytest.raises(NotADirectoryError):
        open_folder(base / "file" / "inner")


@AS_ROOT
@pytest.mark.parametrize("depth", ["", "logs"])
def test_link_of_another_user_is_not_followed_by_root(base: Path, depth: str) -> None:
    (base / "precious").mkdir()
    (base / "link").symlink_to("precious")
    os.lchown(base / "link", STRANGER, STRANGER)
    with pytest.raises(PermissionError) as caught:
        open_folder(base / "link" / depth)
    assert str(STRANGER) in caught.value.strerror
    assert not [*(base / "precious").iterdir()]


@AS_ROOT
@pytest.mark.parametrize(("mode", "follows"), [(0o755, True), (0o1777, False)])
def test_link_of_another_user_counts_for_a_user_only_where_not_everybody_writes(
    base: Path, mode: int, follows: bool
) -> None:
    (base / "shared").mkdir()
    (base / "real").mkdir()
    (base / "shared" / "link").symlink_to(base / "real")
    os.lchown(base / "shared" / "link", STRANGER, STRANGER)
    os.chmod(base / "shared", mode)
    for folder in (base, *base.parents):
        folder.chmod(folder.stat().st_mode | 0o011)
    os.seteuid(STRANGER + 1)
    try:
        if follows:
            assert opened(base / "shared" / "link") == base / "real"
        else:
            with pytest.raises(PermissionError):
                open_folder(base / "shared" / "link")
    finally:
        os.seteuid(0)


@AS_ROOT
def test_private_folder_of_another_user_is_refused(base: Path) -> None:
    (base / "attempt_0").mkdir()
    os.chown(base / "attempt_0", STRANGER, STRANGER)
    parent = open_folder(base)
    with pytest.raises(PermissionError) as caught:
        open_private_folder(parent, "attempt_0")
    os.close(parent)
    assert caught.value.filename == "attempt_0"
    assert (base / "attempt_0").stat().st_uid == STRANGER


@AS_ROOT
def test_folder_that_becomes_a_link_meanwhile_leads_nowhere_else(base: Path) -> None:
    """Another user swaps a folder for a link to the precious one, again and again."""
    (base / "shared").mkdir()
    (base / "precious" / "logs").mkdir(parents=True)
    link, folder = base / "shared" / "link", base / "shared" / "job"
    link.symlink_to(base / "precious")
    os.lchown(link, STRANGER, STRANGER)
    folder.mkdir()
    over = threading.Event()

    def swap() -> None:
        library, exchange = ctypes.CDLL(None), 2  # RENAME_EXCHANGE
        while not over.is_set():
            assert not library.renameat2(-1, os.fsencode(link), -1, os.fsencode(folder), exchange)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for number in range(2000):
            with suppress(PermissionError):  # it was the link
                logs = open_folder(folder / "logs")
                os.close(create_file(logs, f"{number}"))
                os.close(logs)
    finally:
        over.set()
        swapper.join()
    assert not [*(base / "precious" / "logs").iterdir()]
