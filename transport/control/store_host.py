"""The store of a coordinator: the serving side, without I/O."""

from .coordinator import Send


class StoreHost:
    """Keys and values that all ranks can set and wait for."""

    def __init__(self, send: Send) -> None:
        """Start empty."""
        self._send = send
        self._values: dict[str, bytes] = {}
        self._waiting: dict[tuple[int, int], list[str]] = {}

    def set(self, sender: int, number: int, key: str, value: bytes) -> None:
        """Set a key, and answer those who waited for it."""
        self._values[key] = value
        self._send(sender, "answer", [number, True])
        for (rank, its_number), keys in tuple(self._waiting.items()):
            if key in keys and self._has(keys):
                del self._waiting[rank, its_number]
                self._answer(rank, its_number, keys)

    def get(self, sender: int, number: int, keys: list[str]) -> None:
        """Answer with the values, once all keys are set."""
        if self._has(keys):
            self._answer(sender, number, keys)
        else:
            self._waiting[sender, number] = keys

    def check(self, sender: int, number: int, keys: list[str]) -> None:
        """Say whether all keys are set."""
        self._send(sender, "answer", [number, self._has(keys)])

    def cancel(self, sender: int, number: int) -> None:
        """Forget a question that nobody waits for any more."""
        self._waiting.pop((sender, number), None)

    def _has(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def _answer(self, rank: int, number: int, keys: list[str]) -> None:
        self._send(rank, "answer", [number, [self._values[key] for key in keys]])
