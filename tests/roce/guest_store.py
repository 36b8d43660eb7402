"""How ranks of two virtual machines meet: in a folder that both see."""

import time
from collections.abc import Sequence
from pathlib import Path


class FileStore:
    """A rendezvous store in a folder that both machines see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        """Write it in one step."""
        written = self._file(key).with_suffix(".new")
        written.write_bytes(value)
        written.rename(self._file(key))

    def get(self, key: str) -> bytes:
        """Wait for it."""
        until_s = time.monotonic() + 300
        while not self._file(key).exists():
            if time.monotonic() > until_s:
                raise TimeoutError(f"nobody set {key}")
            time.sleep(0.2)
        return self._file(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        """Say whether all are set."""
        return all(self._file(key).exists() for key in keys)

    def _file(self, key: str) -> Path:
        return self._folder / f"key-{key.replace('/', '-')}"
