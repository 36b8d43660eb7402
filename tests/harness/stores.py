"""A rendezvous store for ranks that are threads of one process."""

import threading
from collections.abc import Sequence


class MemoryStore:
    """Set, get and check; get waits up to `deadline_s`."""

    def __init__(self, deadline_s: float = 30.0) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self._deadline_s = deadline_s

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, self._deadline_s):
                raise TimeoutError(f"nobody set {key}")
            return self.values[key]
