"""A disk without a free byte under a rank's logs."""

import ctypes
import os
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 1 << 18
_NUM_BYTES = 65536


class FullDisk:
    """Standard output and errors go to a full device, and `folder` lies on a full file system.

    The file system is this thread's and its children's alone and goes with the process. Without the
    right to mount one only the outputs are full.
    """

    def __init__(self, folder: str) -> None:
        self._saved = [os.dup(descriptor) for descriptor in (1, 2)]
        full = os.open("/dev/full", os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(full, descriptor)
        os.close(full)
        if os.geteuid() == 0:
            _mount(folder)
            _fill(Path(folder, "everything"))

    def close(self) -> None:
        """Give the outputs back."""
        for descriptor, saved in zip((1, 2), self._saved, strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


def _mount(folder: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    size = f"size={_NUM_BYTES}".encode()
    steps = (
        lambda: libc.unshare(_CLONE_NEWNS),
        lambda: libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None),
        lambda: libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, size),
    )
    for step in steps:
        if step() != 0:
            raise OSError(ctypes.get_errno(), f"no file system of its own for {folder}")


def _fill(path: Path) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(descriptor, bytes(4096))
    except OSError:
        pass  # that is what was wanted
    finally:
        os.close(descriptor)
